"""Log-probabilities of emitted tokens under the target's unmodified distribution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.steps import TokenLogprob
from forerun.core.threads import on_one_thread


def token_logprobs(
    logits_NV: Tensor, rows: Sequence[int], token_ids: Sequence[int], num_top: int
) -> tuple[TokenLogprob, ...]:
    """The log-probability of each row's token, and the row's `num_top` likeliest tokens.

    Args:
        logits_NV: the target's raw logits, before any bias, penalty, temperature or filter.
        rows: T of its rows.
        token_ids: T tokens, one for each row.
    """
    return on_one_thread(lambda: _of_rows(logits_NV[list(rows)], token_ids, num_top))


def _of_rows(logits_TV: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    log_probs_TV = logits_TV.log_softmax(-1, dtype=torch.float32)
    best_ids = likeliest(logits_TV, min(num_top, logits_TV.shape[-1]))
    ids_TK = torch.tensor(
        [[token_id, *ids] for token_id, ids in zip(token_ids, best_ids, strict=True)], device=logits_TV.device
    )
    return tuple(
        TokenLogprob(token_id=token_id, logprob=values[0], top=tuple(zip(ids, values[1:], strict=True)))
        for token_id, ids, values in zip(token_ids, best_ids, log_probs_TV.gather(1, ids_TK).tolist(), strict=True)
    )


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
