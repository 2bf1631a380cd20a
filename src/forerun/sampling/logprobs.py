"""How likely written tokens were, by the target's own distribution."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.core.steps import TokenLogprob
from forerun.runtime.threads import on_one_thread


def token_logprobs(logits_TV: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    """The log-probability of each row's token, and the row's `num_top` likeliest tokens.

    Args:
        logits_TV: the target's raw logits: no bias, penalty, temperature or filter has touched them.
        token_ids: T tokens, one of each row.
    """
    return on_one_thread(lambda: _of_rows(logits_TV, token_ids, num_top))


def _of_rows(logits_TV: Tensor, token_ids: Sequence[int], num_top: int) -> tuple[TokenLogprob, ...]:
    log_probs_TV = logits_TV.log_softmax(-1, dtype=torch.float32)
    ids_T1 = torch.tensor(token_ids, device=logits_TV.device)[:, None]
    best_TK, best_ids_TK = log_probs_TV.topk(min(num_top, log_probs_TV.shape[-1]), dim=-1)
    columns = token_ids, log_probs_TV.gather(1, ids_T1)[:, 0].tolist(), best_ids_TK.tolist(), best_TK.tolist()
    return tuple(
        TokenLogprob(token_id=token_id, logprob=logprob, top=tuple(zip(top_ids, top, strict=True)))
        for token_id, logprob, top_ids, top in zip(*columns, strict=True)
    )
