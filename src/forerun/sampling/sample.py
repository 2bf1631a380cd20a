"""Logits to tokens: a request's settings shape the logits, then argmax or keyed sampling picks a token of each row.

With torch's calls, which are the specification of what every backend samples. The temperature divides in
`LogitShaper` where filters follow, else in `sample`.

Legend: T rows, V vocabulary. Scores are log-probabilities up to a constant per row; minus infinity is never chosen.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.runtime.threads import on_one_thread
from forerun.sampling.noise import KeyedRows
from forerun.sampling.truncation import filter_scores

Noise: TypeAlias = KeyedRows | Tensor | None  # of each row: made where it is added, or [T, V], or none for greedy
Truncate: TypeAlias = Callable[[Tensor, SamplingParams], Tensor]  # as `truncation.filter_scores`
TopK: TypeAlias = tuple[list[list[int]], list[list[float]]]  # token ids and log-probabilities, [T][K], likeliest first


class LogitShaper:
    """A request's sampling parameters applied to rows of logits.

    Holds which tokens the text so far contains, for the penalties; the decode loop alone commits tokens to it. Filters
    act in the order bias, penalties, temperature, top_k, top_p, min_p.

    Args:
        truncate: applies the last three; a backend's own, see `model.backend`.

    Attributes:
        needs_paths: a row's scores depend on the tokens between the committed text and it.
        is_plain: scores are the logits.
        temperature_left: what scores are still to be divided by: filters need it done, elsewhere `sample` does it.
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
        self._params, self._device, self._truncate = params, device, truncate
        self._is_filtered, self.needs_paths = params.is_filtered, params.has_penalties
        self.temperature_left = 1.0 if params.is_greedy or params.is_filtered else params.temperature
        self._counts_V = torch.zeros(vocab_size if self.needs_paths else 0, device=device)
        self._seen_V = torch.zeros(vocab_size if self.needs_paths else 0, dtype=torch.bool, device=device)
        if self.needs_paths:
            self._seen_V[list(prompt_ids)] = True
        known = {token: bias for token, bias in params.logit_bias.items() if 0 <= token < vocab_size}
        self._bias_ids = torch.tensor(list(known.keys()), dtype=torch.int64, device=device)
        self._bias = torch.tensor(list(known.values()), dtype=torch.float32, device=device)
        self.is_plain = not (self.needs_paths or self._is_filtered or known)

    def commit(self, token_ids: Sequence[int]) -> None:
        """Count generated tokens."""
        if self.needs_paths:
            ids = torch.tensor(list(token_ids), dtype=torch.int64, device=self._device)
            self._counts_V.index_put_((ids,), torch.ones(len(ids), device=self._device), accumulate=True)
            self._seen_V[ids] = True

    def shape(self, logits_TV: Tensor, paths: Sequence[Sequence[int]] | None = None) -> Tensor:
        """Return scores [T, V], float32 or better, not yet divided by `temperature_left`.

        Args:
            logits_TV: raw logits, any float type.
            paths: for each row the drafted tokens that come after the committed text, its own included; only looked
                at when `needs_paths`.
        """
        scores_TV = logits_TV if logits_TV.dtype == torch.float32 else widened(logits_TV)
        if self.is_plain:
            return scores_TV
        return on_one_thread(lambda: self._shaped(scores_TV, paths))

    def _shaped(self, scores_TV: Tensor, paths: Sequence[Sequence[int]] | None) -> Tensor:
        params = self._params
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
        """Why nothing can be chosen, where it is the request's settings that leave nothing of sound logits."""
        largest = logits_TV.amax().item()  # NaN where any is
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
            f"the target's logits are finite, at most {largest:.3g}, but {settings} put scores beyond all numbers "
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


def widened(logits_TV: Tensor) -> Tensor:
    """float32 or better."""
    return logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))


def divided(scores_TV: Tensor, divisor: float) -> Tensor:
    """Quotients rounded once; for a plain number torch multiplies by its reciprocal on a GPU."""
    return scores_TV / scores_TV.new_full((), divisor)


def penalise(scores_TV: Tensor, seen_TV: Tensor, counts_TV: Tensor, params: SamplingParams) -> Tensor:
    """Repetition penalty on tokens of prompt and answer; frequency and presence penalties on the answer only.

    Repetition: positive scores are divided, negative ones multiplied (CTRL, arXiv 1909.05858). Frequency and presence
    are subtracted, as in the OpenAI API.
    """
    penalty = params.repetition_penalty
    repeated = torch.where(scores_TV > 0, divided(scores_TV, penalty), scores_TV * penalty)
    scores_TV = torch.where(seen_TV, repeated, scores_TV)
    counts_TV = counts_TV.to(scores_TV.dtype)
    return scores_TV - params.frequency_penalty * counts_TV - params.presence_penalty * counts_TV.clamp(max=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The target's token after each row, and by how much it led the next one."""

    token_ids: list[int]
    margins: list[float]

    @classmethod
    def of(cls, best: "BestTokens") -> "Choices":
        """The tokens with the best totals.

        Raises:
            NumericalError: a row holds NaN or plus infinity, or nothing else than minus infinity.
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
    """Of each row, maybe over a part of the vocabulary only.

    Args:
        token_ids: with the largest score / temperature + noise; of several the lowest.
        totals: theirs; NaN where any is.
        next_totals: of the best other tokens, minus infinity where there is none.
    """

    token_ids: list[int]
    totals: list[float]
    next_totals: list[float]

    @classmethod
    def nothing(cls, num_rows: int) -> "BestTokens":
        """Of no token at all."""
        return cls(token_ids=[0] * num_rows, totals=[-math.inf] * num_rows, next_totals=[-math.inf] * num_rows)

    @classmethod
    def joined(cls, parts: "Sequence[BestTokens]") -> "BestTokens":
        """Of parts of the vocabulary that lie one behind the other."""
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
        NumericalError: a row holds NaN or plus infinity, or nothing else than minus infinity.
    """
    return Choices.of(best_tokens(scores_TV, noise, temperature=temperature))


def best_tokens(scores_TV: Tensor, noise: Noise, *, temperature: float = 1.0) -> BestTokens:
    """Find argmax(score / temperature + noise) in each row; ties go to the lowest id.

    With Gumbel noise this is a draw from softmax(scores / temperature), the Gumbel-max identity, and a function of the
    scores and of the noise's key alone, so every drafter and schedule gives the same token. Without noise it is greedy.

    Source: Daliri, Musco, Suresh, arXiv 2408.07978 (drafter-invariant coupling).
    """
    totals_TV = perturbed(scores_TV, noise, temperature)
    best_T2, ids_T2 = totals_TV.topk(min(2, totals_TV.shape[-1]), dim=-1)
    rows = best_T2.tolist()
    has_tie = any(row[0] == row[-1] for row in rows)  # topk names any of the tied ids, argmax the lowest
    return BestTokens(
        token_ids=(totals_TV.argmax(-1) if has_tie else ids_T2[:, 0]).tolist(),
        totals=[row[0] for row in rows],
        next_totals=[row[1] if len(row) > 1 else -math.inf for row in rows],
    )


def topk(
    scores_TV: Tensor, noise: Noise, k: int, *, temperature: float = 1.0, column_ids: Tensor | None = None
) -> TopK:
    """A drafter's `k` likeliest guesses of what `sample` will pick in each row.

    They are ranked by the draft's score plus the target's own noise. A guess's log-probability is that of the same
    perturbed scores: the larger the lead, the likelier that the target agrees.

    Args:
        column_ids: int32 [W]: the target's tokens that the columns stand for; None: column 0 is token 0, and so on.
    """
    totals_TV = perturbed(scores_TV, noise, temperature, column_ids)
    log_probs_TK, ids_TK = totals_TV.log_softmax(-1).topk(min(k, totals_TV.shape[-1]), dim=-1)
    return (ids_TK if column_ids is None else column_ids[ids_TK]).tolist(), log_probs_TK.tolist()


def perturbed(scores_TV: Tensor, noise: Noise, temperature: float, column_ids: Tensor | None = None) -> Tensor:
    """score / temperature + noise; a draft's scores may be those of some tokens only."""
    if temperature != 1.0:
        scores_TV = divided(scores_TV, temperature)
    noise_TV = noise.tensor if isinstance(noise, KeyedRows) else noise
    if noise_TV is None:
        return scores_TV
    if column_ids is not None:
        return scores_TV + noise_TV.index_select(1, column_ids)
    return scores_TV + noise_TV[:, : scores_TV.shape[-1]]
