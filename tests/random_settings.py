"""Sampling settings, rows of logits and predictions, drawn from their whole ranges and from the edges of these."""

import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.config import SamplingParams

LEADING = 256  # as many tokens are sorted at first: on both sides of it filters take other ways


def random_params(rng: random.Random, vocab_size: int, *, seed: int | None = None) -> SamplingParams:
    """Any setting that leaves at least one token, most of them such that several tokens stay likely."""
    penalised = rng.random() < 0.3
    biased = rng.sample(range(vocab_size), min(vocab_size - 1, rng.choice([0, 0, 0, 1, 2, 5, vocab_size - 1])))
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.0, 1.5, 10.0 ** rng.uniform(-4, 3), rng.uniform(0.2, 3.0)]),
        top_k=random_top_k(rng, vocab_size),
        top_p=rng.choice([1.0, 1.0, 0.5, rng.random() or 1.0, rng.uniform(0.8, 1.0), 1e-9, 1.0 - 1e-9]),
        min_p=rng.choice([0.0, 0.0, 0.0, 10.0 ** rng.uniform(-6, 0), rng.random(), 1.0]),
        repetition_penalty=rng.choice([0.8, 1.0, 1.3, 10.0 ** rng.uniform(-4, 4)]) if penalised else 1.0,
        presence_penalty=rng.choice([-2.0, 0.0, 0.7, rng.uniform(-2, 2)]) if penalised else 0.0,
        frequency_penalty=rng.choice([0.0, 2.0, 0.4, rng.uniform(-2, 2)]) if penalised else 0.0,
        logit_bias={token: rng.choice([rng.uniform(-4, 4), -100.0, -math.inf]) for token in biased},
        seed=seed,
    )


def random_top_k(rng: random.Random, vocab_size: int) -> int:
    some = [rng.randint(1, vocab_size), round(vocab_size ** rng.random()), rng.randint(LEADING - 1, LEADING + 40)]
    if vocab_size > LEADING:
        some += [rng.randint(LEADING, vocab_size), round(LEADING * (vocab_size / LEADING) ** rng.random())]
    return rng.choice([0, 0, 1, 2, 5, 40, *some, vocab_size - 1, vocab_size, vocab_size + 1, 10**6])


def random_logits(rng: random.Random, num_rows: int, vocab_size: int, dtype: torch.dtype) -> Tensor:
    """Rows that are flat, peaked, full of ties or mostly forbidden, side by side."""
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    logits_TV = torch.randn(num_rows, vocab_size, generator=generator, dtype=torch.float64)
    for row in range(num_rows):
        logits_TV[row] *= rng.choice([0.0, 1e-3, 0.1, 1.0, 2.0, 4.0, 30.0])
        if rng.random() < 0.3:
            logits_TV[row] = (logits_TV[row] * 2).round() / 2
        if rng.random() < 0.2:
            forbidden_V = torch.rand(vocab_size, generator=generator) < 0.9
            forbidden_V[rng.randrange(vocab_size)] = False
            logits_TV[row, forbidden_V] = -math.inf
    return logits_TV.to(dtype)


def edited(rng: random.Random, text: Sequence[int], vocab_size: int) -> list[int]:
    """The begin of a text with tokens replaced, left out and put in, or all of it: what a user expects of it."""
    found: list[int] = []
    for token in text[: rng.randint(0, len(text))]:
        kind = rng.random()
        found += [] if kind < 0.1 else [rng.randrange(vocab_size)] if kind < 0.2 else [token]
        found += [rng.randrange(vocab_size)] if rng.random() < 0.1 else []
    return found
