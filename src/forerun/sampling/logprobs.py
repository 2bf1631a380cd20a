"""Log-probabilities of tokens under the target's unmodified distribution."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from forerun.core.steps import TokenLogprob
from forerun.core.threads import on_one_thread

MOST_ROWS: Final = 16  # at a time, which limits the memory: a row of 150,000 tokens has 0.6 MB


def token_logprobs(
    logits_NV: Tensor, rows: Sequence[int], token_ids: Sequence[int], num_top: int
) -> tuple[TokenLogprob, ...]:
    """The log-probability of each row's token, and the row's `num_top` likeliest tokens.

    Args:
        logits_NV: the target's raw logits, before any bias, penalty, temperature or filter.
        rows: T of its rows.
        token_ids: T tokens, one for each row.
    """
    pieces = [
        (rows[first : first + MOST_ROWS], token_ids[first : first + MOST_ROWS])
        for first in range(0, len(rows), MOST_ROWS)
    ]
    return on_one_thread(
        lambda: tuple(item for rows, ids in pieces for item in _of_rows(logits_NV[list(rows)], ids, num_top))
    )


def _of_rows(logits_TV: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    log_probs_TV = logits_TV.log_softmax(-1, dtype=torch.float32)
    best_ids = likeliest(logits_TV, min(num_top, logits_TV.shape[-1]))
    ids_TK = torch.tensor(
        [[token_id, *ids] for token_id, ids in zip(token_ids, best_ids, strict=True)], device=logits_TV.device
    )
    values_TK = log_probs_TV.gather(1, ids_TK).tolist()
    return tuple(
        TokenLogprob(
            token_id=token_id, logprob=values[0], num_likelier=num, top=tuple(zip(ids, values[1:], strict=True))
        )
        for token_id, num, ids, values in zip(
            token_ids, num_likelier(logits_TV, ids_TK[:, :1]), best_ids, values_TK, strict=True
        )
    )


def num_likelier(logits_TV: Tensor, ids_T1: Tensor) -> list[int]:
    """The number of tokens before each row's token in the order of `likeliest`."""
    scores_T1 = logits_TV.gather(1, ids_T1)
    higher_T = (logits_TV > scores_T1).sum(-1)
    lower_ids_V = torch.arange(logits_TV.shape[-1], device=logits_TV.device)
    tied_T = ((logits_TV == scores_T1) & (lower_ids_V < ids_T1)).sum(-1)
    return [int(num) for num in (higher_T + tied_T).tolist()]


def likeliest(logits_TV: Tensor, num_top: int) -> list[list[int]]:
    """The tokens with the highest scores in each row, best first; among equal scores the lowest ids come first.

    So the first is the greedy token that `sample` picks. torch's topk orders equal scores arbitrarily, depending on K.
    """
    found: list[list[int]] = [[] for _ in logits_TV]
    if num_top == 0:
        return found
    least_T1 = logits_TV.topk(num_top, dim=-1).values[:, -1:]
    rows, ids = (logits_TV >= least_T1).nonzero(as_tuple=True)
    for row, _, token_id in sorted(zip(rows.tolist(), (-logits_TV[rows, ids]).tolist(), ids.tolist(), strict=True)):
        found[row].append(token_id)
    return [token_ids[:num_top] for token_ids in found]
