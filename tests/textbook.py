"""A sampler as the textbooks and two widely used engines have it, for one row, in numpy; no code of the package.

The order and the definitions are those of transformers (logits processors: bias, repetition penalty, temperature,
top_k, top_p, min_p) and of vLLM (penalties of frequency and presence on what was generated). Where these keep all
tokens that tie with the last one of top_k, the lowest ids are kept here, exactly top_k, as documented.

Legend: V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.core.config import SamplingParams

Row = NDArray[np.floating[Any]]
EDGE = 1e-6  # of probability: rounding may put a token on either side of top_p or min_p


@dataclass(frozen=True, kw_only=True)
class Pick:
    """The token, and those that other roundings of the same sums could give."""

    token: int
    possible: frozenset[int]
    lead: float


def pick(
    logits_V: Row, params: SamplingParams, prompt_ids: Sequence[int], answer: Sequence[int], noise_V: Row | None
) -> Pick | None:
    """The token after a text; None where nothing can be chosen. Greedy choices take no noise and no filter."""
    scores_V = shaped(logits_V, params, prompt_ids, answer)
    if not np.isfinite(scores_V.max()):
        return None
    if noise_V is None:
        picks = [int(scores_V.argmax())] * 3
        totals_V = scores_V
    else:
        picks = []
        for slack in (0.0, EDGE, -EDGE) if params.is_filtered else (0.0,):
            totals_V = np.where(kept(scores_V, params, slack), scores_V + noise_V.astype(scores_V.dtype), -np.inf)
            picks.append(int(totals_V.argmax()))
        totals_V = scores_V + noise_V
    others_V = np.delete(totals_V, picks[0])
    lead = float(totals_V[picks[0]] - others_V.max()) if len(others_V) else np.inf
    return Pick(token=picks[0], possible=frozenset(picks), lead=lead)


def shaped(logits_V: Row, params: SamplingParams, prompt_ids: Sequence[int], answer: Sequence[int]) -> Row:
    """Bias, penalties and temperature, in the precision of the logits."""
    number = logits_V.dtype.type
    with np.errstate(over="ignore"):
        scores_V = logits_V.copy()
        for token, bias in params.logit_bias.items():
            scores_V[token] += number(np.float32(bias))
        seen = sorted({*prompt_ids, *answer})
        penalty = number(params.repetition_penalty)
        scores_V[seen] = np.where(scores_V[seen] > 0, scores_V[seen] / penalty, scores_V[seen] * penalty)
        for token in set(answer):
            scores_V[token] -= number(params.frequency_penalty) * number(list(answer).count(token))
            scores_V[token] -= number(params.presence_penalty)
        return scores_V if params.is_greedy else scores_V / number(params.temperature)


def kept(scores_V: Row, params: SamplingParams, slack: float) -> NDArray[np.bool_]:
    """Which tokens top_k, top_p and min_p leave, top_p and min_p being met within `slack`."""
    wide_V = scores_V.astype(np.float64)
    ascending = np.lexsort((-np.arange(len(wide_V)), wide_V))  # of equal scores the lowest id is the last to go
    is_kept_V = np.ones(len(wide_V), np.bool_)
    if params.top_k:
        is_kept_V[ascending[: max(0, len(wide_V) - params.top_k)]] = False
    if params.top_p < 1.0:
        in_race_V = np.where(is_kept_V, wide_V, -np.inf)[ascending]
        below_V = softmax(in_race_V).cumsum()
        is_out_V = below_V <= 1.0 - params.top_p - slack
        is_out_V[-1] = False
        is_kept_V[ascending[is_out_V]] = False
    if params.min_p > 0.0:
        probs_V = softmax(np.where(is_kept_V, wide_V, -np.inf))
        is_kept_V &= probs_V >= min(params.min_p * (1.0 - slack), 1.0) * probs_V.max()
    return is_kept_V


def softmax(scores_V: NDArray[np.float64]) -> NDArray[np.float64]:
    weights_V = np.exp(scores_V - scores_V.max())
    return np.asarray(weights_V / weights_V.sum())


def gumbel(seed: int, position: int, vocab_size: int) -> NDArray[np.float32]:
    """Standard Gumbel noise from 32 hashed bits a token."""
    key = mix64(mix64(seed) ^ position)
    with np.errstate(over="ignore"):
        tokens = np.arange(vocab_size, dtype=np.uint32) * np.uint32(0x9E3779B1) + np.uint32(key & 0xFFFFFFFF)
        bits = mix32(mix32(tokens) ^ np.uint32(key >> 32))
    uniform = (bits.astype(np.int32).astype(np.float64) + 2.0**31 + 0.5) * 2.0**-32
    return (-np.log(-np.log(uniform))).astype(np.float32)


def mix64(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def mix32(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    bits = (bits ^ (bits >> 16)) * np.uint32(0x21F0AAAD)
    bits = (bits ^ (bits >> 15)) * np.uint32(0xD35A2D97)
    return np.asarray(bits ^ (bits >> 15))
