"""Rows of logits through every path of sampling, alone and in company: how many of them differ in a bit."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import FUSED
from forerun.core.errors import NumericalError
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper
from tests.random_settings import random_logits, random_params

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SIZES = (2, 3, 60, 257, 300, 1000, 4097, 20_000)
MOST_ROWS = 24


class Pass:
    """The rows of one pass with all that is done to them."""

    def __init__(self, number: int) -> None:
        rng = random.Random(number)
        self.vocab_size = rng.choice(SIZES)
        self.num_rows = rng.randint(2, MOST_ROWS)
        self.params = random_params(rng, self.vocab_size)
        self.num_children = rng.choice([1, 4, 16, 17, 40])  # more than 16 are ranked by torch
        is_torch = rng.random() < 0.3
        self.logits = random_logits(rng, self.num_rows, self.vocab_size, rng.choice(DTYPES))
        self.is_native = not is_torch and self.logits.dtype != torch.float64 and fault() is None
        if self.params.is_filtered and rng.random() < 0.3:
            self.params = replace(self.params, top_p=edge_of(self.logits[0], self.params.temperature, rng))
        self.paths = [[rng.randrange(self.vocab_size) for _ in range(rng.randint(0, 4))] for _ in range(self.num_rows)]
        self.positions = [rng.randint(5, 40) for _ in range(self.num_rows)]
        self._noise = KeyedNoise(number, self.vocab_size)
        with threads(1):
            self._noise.rows(range(5, 41))  # kept: most of the time would go into it
        self._shaper = LogitShaper(self.params, self.vocab_size, [rng.randrange(self.vocab_size) for _ in range(9)])
        self._shaper.commit([rng.randrange(self.vocab_size) for _ in range(9)])

    @property
    def paths_taken(self) -> list[str]:
        """The names of what these rows go through."""
        names = [str(self.logits.dtype)[6:], "greedy" if self.params.is_greedy else "sampled"]
        names += ["filtered"] * self.params.is_filtered + ["penalised"] * self.params.has_penalties
        return [*names, "native" if self.is_native else "torch"]

    def results(self, rows: Sequence[int]) -> tuple[Tensor, list[tuple[object, ...]]]:
        """Of these rows alone: the scores, then each one's token, lead, and children with their log-probabilities."""
        scores = self._shaper.shape(self.logits[list(rows)], [self.paths[row] for row in rows])
        noise = None if self.params.is_greedy else self._noise.at([self.positions[row] for row in rows])
        left, backend = self._shaper.temperature_left, NATIVE if self.is_native else FUSED
        chosen = backend.sample(scores, noise, temperature=left)
        ids, log_probs = backend.topk(scores, noise, self.num_children, temperature=left)
        told = zip(chosen.token_ids, map(repr, chosen.margins), ids, map(repr, log_probs), strict=True)
        return scores, list(told)


def edge_of(logits_V: Tensor, temperature: float, rng: random.Random) -> float:
    """What some leading tokens of a row add up to: the least difference in a sum changes what top_p keeps."""
    probs_V = (logits_V.double() / temperature).softmax(-1).sort(descending=True).values
    return min(1.0, max(1e-9, probs_V[: rng.randint(1, len(probs_V))].sum().item()))


def count_rows(number: int, totals: Counter[str]) -> None:
    """Count the rows of one pass, and those that differ, by the paths they take."""
    rows = Pass(number)
    everyone = range(rows.num_rows)
    try:
        with threads(2):
            scores, told = rows.results(everyone)
    except NumericalError:  # some settings leave nothing of some rows
        totals["passes refused"] += 1
        return
    for row in everyone:
        with threads(1):
            alone, told_alone = rows.results([row])
        is_same = torch.equal(alone[0], scores[row]) and told_alone[0] == told[row]
        for name in ("all", *rows.paths_taken):
            totals[f"{name}: rows"] += 1
            totals[f"{name}: differ"] += not is_same


@contextmanager
def threads(number: int) -> Iterator[None]:
    """So many of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
