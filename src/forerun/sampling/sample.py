"""From logits to tokens: a request's settings shape the logits, then argmax or keyed sampling picks a token per row.

This torch code is the reference for every backend's sampling. `LogitShaper` divides by the temperature if filters
follow; otherwise `sample` does.

Legend: T rows, V vocabulary. Scores are log-probabilities up to a constant per row; minus infinity is never chosen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.core.threads import on_one_thread
from forerun.sampling.noise import KeyedRows
from forerun.sampling.truncation import filter_scores

Noise: TypeAlias = KeyedRows | Tensor | None  # as keys, as a tensor [T, V], or None for greedy
Truncate: TypeAlias = Callable[[Tensor, SamplingParams], Tensor]  # as `truncation.filter_scores`
TopK: TypeAlias = tuple[list[list[int]], list[list[float]]]  # token ids and log-probabilities, [T][K], likeliest first


class LogitShaper:
    """Applies a request's sampling parameters to rows of logits.

    The order is the grammar's mask, bias, penalties, temperature, top_k, top_p, min_p. For the penalties it counts the
    tokens of the text so far; only the decode loop commits tokens to it.

    Args:
        truncate: applies top_k, top_p and min_p; a backend may have its own, see `model.backend`.

    Attributes:
        needs_paths: a row's scores depend on the drafted tokens between the committed text and the row.
        is_plain: the scores are the logits, changed only by masks.
        temperature_left: the temperature by which `sample` must still divide; 1 if `shape` divides, as filters need.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_size: int,
        prompt_ids: Sequence[int],
        *,
        device: str = "cpu",
        truncate: Truncate = filter_scores,
    ) -> None:
        self._params = params
        self._device = device
        self._truncate = truncate
        self._is_filtered = params.is_filtered
        self.needs_paths = params.has_penalties
        self.temperature_left = 1.0 if params.is_greedy or params.is_filtered else params.temperature
        self._counts_V = torch.zeros(vocab_size if self.needs_paths else 0, device=device)
        self._seen_V = torch.zeros(vocab_size if self.needs_paths else 0, dtype=torch.bool, device=device)
        if self.needs_paths:
            self._seen_V[list(prompt_ids)] = True
        known = {token: bias for token, bias in params.logit_bias.items() if 0 <= token < vocab_size}
        self._bias_ids = torch.tensor(list(known), dtype=torch.int64, device=device)
        self._bias = torch.tensor(list(known.values()), dtype=torch.float32, device=device)
        self.is_plain = not (self.needs_paths or self._is_filtered or known)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Count generated tokens."""
        if self.needs_paths:
            ids = torch.tensor(list(token_ids), dtype=torch.int64, device=self._device)
            self._counts_V.index_put_((ids,), torch.ones(len(ids), device=self._device), accumulate=True)
            self._seen_V[ids] = True

    def shape(
        self,
        logits_TV: Tensor,
        paths: Sequence[Sequence[int]] | None = None,
        masks: NDArray[np.int32] | None = None,
    ) -> Tensor:
        """Return scores [T, V], float32 or better, not yet divided by `temperature_left`.

        Args:
            logits_TV: raw logits, any float type.
            paths: for each row the drafted tokens after the committed text, the row's own included; used only if
                `needs_paths`.
            masks: int32 [T, W], the tokens that a grammar allows, as bits; see `text.constraint`. None: all.
        """
        scores_TV = logits_TV if logits_TV.dtype == torch.float32 else widened(logits_TV)
        if self.is_plain and masks is None:
            return scores_TV
        return on_one_thread(lambda: self._shaped(scores_TV, paths, masks))

    def _shaped(
        self, scores_TV: Tensor, paths: Sequence[Sequence[int]] | None, masks: NDArray[np.int32] | None
    ) -> Tensor:
        params = self._params
        if masks is not None:
            scores_TV = scores_TV.masked_fill(forbidden(masks, scores_TV), -math.inf)
        if len(self._bias_ids):
            scores_TV = scores_TV.index_add(
                1, self._bias_ids, self._bias.to(scores_TV.dtype).expand(len(scores_TV), -1)
            )
        if self.needs_paths:
            scores_TV = self._penalise(scores_TV, paths or [()] * len(scores_TV))
        if not self._is_filtered:
            return scores_TV
        if params.temperature != 1.0:
            scores_TV = divided(scores_TV, params.temperature)
        return self._truncate(scores_TV, params)

    def fault_of_settings(self, logits_TV: Tensor) -> str:
        """Why no token can be chosen, if the logits are finite and the request's settings are the cause; else ""."""
        largest = logits_TV.amax().item()  # NaN if any logit is NaN
        if not -math.inf < largest < math.inf:
            return ""
        params = self._params
        named = {
            f"temperature {params.temperature}": not params.is_greedy,
            f"repetition_penalty {params.repetition_penalty}": params.repetition_penalty != 1.0,
            "logit_bias": len(self._bias_ids) > 0,
        }
        settings = " and ".join(name for name, is_set in named.items() if is_set)
        return settings and (
            f"the target's logits are finite, at most {largest:.3g}, but {settings} make scores overflow "
            "or forbid every token: take a temperature and a repetition_penalty nearer to 1, and smaller biases"
        )

    def _penalise(self, scores_TV: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        counts_TV = self._counts_V.repeat(len(paths), 1)
        seen_TV = self._seen_V.repeat(len(paths), 1)
        rows = [row for row, path in enumerate(paths) for _ in path]
        if rows:
            where = (
                torch.tensor(rows, device=self._device),
                torch.tensor([t for path in paths for t in path], device=self._device),
            )
            counts_TV.index_put_(where, torch.ones(len(rows), device=self._device), accumulate=True)
            seen_TV.index_put_(where, torch.ones(len(rows), dtype=torch.bool, device=self._device))
        return penalise(scores_TV, seen_TV, counts_TV, self._params)


def forbidden(masks: NDArray[np.int32], scores_TV: Tensor) -> Tensor:
    """The tokens that masks do not allow, as bool [T, V] on the scores' device."""
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=scores_TV.shape[-1], bitorder="little")
    return torch.from_numpy(bits).to(scores_TV.device).eq(0)


def widened(logits_TV: Tensor) -> Tensor:
    """The logits in float32, or in float64 if they are."""
    return logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))


def divided(scores_TV: Tensor, divisor: float) -> Tensor:
    """Divide, rounding once; by a Python number torch would multiply with its reciprocal on a GPU."""
    return scores_TV / scores_TV.new_full((), divisor)


def penalise(scores_TV: Tensor, seen_TV: Tensor, counts_TV: Tensor, params: SamplingParams) -> Tensor:
    """Apply the repetition penalty to tokens of prompt and answer, the other penalties only to those of the answer.

    The repetition penalty divides positive scores and multiplies negative ones (CTRL, arXiv 1909.05858). Frequency and
    presence penalties are subtracted, as in the OpenAI API.
    """
    penalty = params.repetition_penalty
    repeated = torch.where(scores_TV > 0, divided(scores_TV, penalty), scores_TV * penalty)
    scores_TV = torch.where(seen_TV, repeated, scores_TV)
    counts_TV = counts_TV.to(scores_TV.dtype)
    return scores_TV - params.frequency_penalty * counts_TV - params.presence_penalty * counts_TV.clamp(max=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The target's token after each row, and its margin over the next best one."""

    token_ids: list[int]
    margins: list[float]

    @classmethod
    def of(cls, best: "BestTokens") -> "Choices":
        """The best tokens and their margins.

        Raises:
            NumericalError: a row holds NaN or plus infinity, or only minus infinity.
        """
        for row, total in enumerate(best.totals):
            if not -math.inf < total < math.inf:
                raise NumericalError(
                    f"the target's logits in row {row} have the maximum {total}: nothing can be chosen from them. "
                    "The checkpoint may be damaged, or its values exceed this dtype: try dtype float32"
                )
        return cls(
            token_ids=best.token_ids,
            margins=[total - next_total for total, next_total in zip(best.totals, best.next_totals, strict=True)],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BestTokens:
    """The best token of each row, perhaps of a part of the vocabulary only. A total is score / temperature + noise.

    Args:
        token_ids: the tokens with the largest totals; of equal ones the lowest id.
        totals: their totals; NaN if the row contains NaN.
        next_totals: the second largest totals; minus infinity if there is no other token.
    """

    token_ids: list[int]
    totals: list[float]
    next_totals: list[float]

    @classmethod
    def nothing(cls, num_rows: int) -> "BestTokens":
        """The result for an empty vocabulary."""
        return cls(token_ids=[0] * num_rows, totals=[-math.inf] * num_rows, next_totals=[-math.inf] * num_rows)

    @classmethod
    def joined(cls, parts: "Sequence[BestTokens]") -> "BestTokens":
        """Join the results of consecutive parts of the vocabulary."""
        rows = range(len(parts[0].totals))
        leading = [max(parts, key=lambda part: infinite_if_nan(part.totals[row])) for row in rows]
        return cls(
            token_ids=[part.token_ids[row] for row, part in zip(rows, leading, strict=True)],
            totals=[part.totals[row] for row, part in zip(rows, leading, strict=True)],
            next_totals=[
                max(part.next_totals[row] if part is best else part.totals[row] for part in parts)
                for row, best in zip(rows, leading, strict=True)
            ],
        )


def infinite_if_nan(total: float) -> float:
    return math.inf if math.isnan(total) else total


def sample(scores_TV: Tensor, noise: Noise, *, temperature: float = 1.0) -> Choices:
    """`best_tokens` as choices.

    Raises:
        NumericalError: a row holds NaN or plus infinity, or only minus infinity.
    """
    return Choices.of(best_tokens(scores_TV, noise, temperature=temperature))


def best_tokens(scores_TV: Tensor, noise: Noise, *, temperature: float = 1.0) -> BestTokens:
    """Find argmax(score / temperature + noise) in each row; ties go to the lowest id.

    With Gumbel noise this draws from softmax(scores / temperature) (the Gumbel-max trick). The token depends only on
    the scores and the noise's key, so every drafter and schedule gives the same one. Without noise it is greedy.

    Source: Daliri, Musco, Suresh, arXiv 2408.07978 (drafter-invariant coupling).
    """
    totals_TV = perturbed(scores_TV, noise, temperature)
    best_T2, ids_T2 = totals_TV.topk(min(2, totals_TV.shape[-1]), dim=-1)
    rows = best_T2.tolist()
    has_tie = any(row[0] == row[-1] for row in rows)  # topk returns any of the tied ids, argmax the lowest
    return BestTokens(
        token_ids=(totals_TV.argmax(-1) if has_tie else ids_T2[:, 0]).tolist(),
        totals=[row[0] for row in rows],
        next_totals=[row[1] if len(row) > 1 else -math.inf for row in rows],
    )


def topk(
    scores_TV: Tensor, noise: Noise, k: int, *, temperature: float = 1.0, column_ids: Tensor | None = None
) -> TopK:
    """A drafter's `k` likeliest guesses of the token that `sample` will pick in each row.

    Guesses are ranked by the draft's score plus the target's own noise. Their log-probabilities are the log-softmax of
    these sums: the larger a guess's lead, the likelier the target picks it.

    Args:
        column_ids: int32 [W]: the target's token of each column; None: column 0 is token 0, and so on.
    """
    totals_TV = perturbed(scores_TV, noise, temperature, column_ids)
    log_probs_TK, ids_TK = totals_TV.log_softmax(-1).topk(min(k, totals_TV.shape[-1]), dim=-1)
    return (ids_TK if column_ids is None else column_ids[ids_TK]).tolist(), log_probs_TK.tolist()


def perturbed(scores_TV: Tensor, noise: Noise, temperature: float, column_ids: Tensor | None = None) -> Tensor:
    """score / temperature + noise; the columns of a draft may be only some of the tokens."""
    if temperature != 1.0:
        scores_TV = divided(scores_TV, temperature)
    noise_TV = noise.tensor if isinstance(noise, KeyedRows) else noise
    if noise_TV is None:
        return scores_TV
    if column_ids is not None:
        return scores_TV + noise_TV.index_select(1, column_ids)
    return scores_TV + noise_TV[:, : scores_TV.shape[-1]]
