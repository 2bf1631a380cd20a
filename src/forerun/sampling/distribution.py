"""Logits to scores: bias, penalties, temperature, filters.

Legend: T rows, V vocabulary. Scores are log-probabilities up to a constant per row; minus infinity is never chosen.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.runtime.threads import on_one_thread
from forerun.sampling.filters import filter_scores


class LogitShaper:
    """A request's sampling parameters applied to rows of logits.

    Holds which tokens the text so far contains, for the penalties; the decode loop alone commits tokens to it. Filters
    act in the order bias, penalties, temperature, top_k, top_p, min_p.
    """

    def __init__(
        self, params: SamplingParams, vocab_size: int, prompt_ids: Sequence[int], *, device: str = "cpu"
    ) -> None:
        self._params, self._device = params, device
        self._is_filtered = params.is_filtered
        self._counts_V = torch.zeros(vocab_size if params.has_penalties else 0, device=device)
        self._seen_V = torch.zeros(vocab_size if params.has_penalties else 0, dtype=torch.bool, device=device)
        if params.has_penalties:
            self._seen_V[list(prompt_ids)] = True
        known = {token: bias for token, bias in params.logit_bias.items() if 0 <= token < vocab_size}
        self._bias_ids = torch.tensor(list(known.keys()), dtype=torch.int64, device=device)
        self._bias = torch.tensor(list(known.values()), dtype=torch.float32, device=device)
        self._is_shaped = params.has_penalties or self._is_filtered or len(known) > 0

    @property
    def temperature_left(self) -> float:
        """What scores are still to be divided by: filters need it done, elsewhere who adds noise does it in passing."""
        return 1.0 if self._params.is_greedy or self._is_filtered else self._params.temperature

    @property
    def needs_paths(self) -> bool:
        """True when a row's scores depend on the tokens between the committed text and it."""
        return self._params.has_penalties

    def commit(self, token_ids: Sequence[int]) -> None:
        """Count generated tokens."""
        if self._params.has_penalties:
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
        if not self._is_shaped:
            return scores_TV
        return on_one_thread(lambda: self._shaped(scores_TV, paths))

    def _shaped(self, scores_TV: Tensor, paths: Sequence[Sequence[int]] | None) -> Tensor:
        params = self._params
        if len(self._bias_ids):
            scores_TV = scores_TV.index_add(
                1, self._bias_ids, self._bias.to(scores_TV.dtype).expand(len(scores_TV), -1)
            )
        if params.has_penalties:
            scores_TV = self._penalise(scores_TV, paths or [()] * len(scores_TV))
        if not self._is_filtered:
            return scores_TV
        if params.temperature != 1.0:
            scores_TV = scores_TV / params.temperature
        return filter_scores(scores_TV, params)

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


def penalise(scores_TV: Tensor, seen_TV: Tensor, counts_TV: Tensor, params: SamplingParams) -> Tensor:
    """Repetition penalty on tokens of prompt and answer; frequency and presence penalties on the answer alone.

    Repetition: positive scores are divided, negative ones multiplied (CTRL, arXiv 1909.05858). Frequency and presence
    are subtracted, as in the OpenAI API.
    """
    penalty = params.repetition_penalty
    repeated = torch.where(scores_TV > 0, scores_TV / penalty, scores_TV * penalty)
    scores_TV = torch.where(seen_TV, repeated, scores_TV)
    counts_TV = counts_TV.to(scores_TV.dtype)
    return scores_TV - params.frequency_penalty * counts_TV - params.presence_penalty * counts_TV.clamp(max=1)
