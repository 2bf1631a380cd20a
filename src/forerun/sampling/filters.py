"""top_k, top_p and min_p: which tokens stay in the race.

Each filter keeps some leading tokens of a row, so that the three together are one number a row. Finding it needs the
leading tokens in order, nearly always few of them: a partial sort of 256 of 150,000 tokens takes a hundredth of the
time of a whole one.

Legend: T rows, V vocabulary, K leading tokens looked at.
"""

import torch
from torch import Tensor

from forerun.core.config import SamplingParams

LEADING_TOKENS = 256


def filter_scores(scores_TV: Tensor, params: SamplingParams) -> Tensor:
    """Put tokens outside top_k, top_p or min_p at minus infinity.

    Ties are broken by the lowest id, so that exactly top_k tokens stay. top_p looks at what top_k left; the token that
    carries the sum over it is kept, hence at least one is. min_p keeps tokens at least min_p times as likely as the
    likeliest.
    """
    vocab_size = scores_TV.shape[-1]
    limit = min(params.top_k, vocab_size) if params.top_k > 0 else vocab_size
    leaders_TK = scores_TV.topk(min(limit, LEADING_TOKENS), dim=-1).values
    counts_T1 = count_kept(scores_TV, leaders_TK, limit, params)
    is_short = leaders_TK.shape[-1] < limit
    if is_short and bool((counts_T1 >= leaders_TK.shape[-1]).any()):
        leaders_TK = scores_TV.sort(dim=-1, descending=True).values[:, :limit]
        counts_T1 = count_kept(scores_TV, leaders_TK, limit, params)
    return keep_leading(scores_TV, leaders_TK.gather(1, counts_T1 - 1), counts_T1)


def count_kept(scores_TV: Tensor, leaders_TK: Tensor, limit: int, params: SamplingParams) -> Tensor:
    """[T, 1]: how many leading tokens of each row stay; K where it may be more than the leaders at hand."""
    keep_TK = torch.ones_like(leaders_TK, dtype=torch.bool)
    if params.top_p < 1.0:
        in_race = leaders_TK if leaders_TK.shape[-1] == limit else scores_TV
        probs_TK = (leaders_TK - in_race.logsumexp(-1, keepdim=True)).exp()
        keep_TK &= probs_TK.cumsum(-1) - probs_TK < params.top_p
    if params.min_p > 0.0:
        keep_TK &= (leaders_TK - leaders_TK[:, :1]).exp() >= params.min_p
    return keep_TK.sum(-1, keepdim=True).clamp_(min=1)


def keep_leading(scores_TV: Tensor, last_T1: Tensor, counts_T1: Tensor) -> Tensor:
    """Keep the `counts` leading tokens of each row, `last` being the score of the last one kept."""
    above_TV, tied_TV = scores_TV > last_T1, scores_TV == last_T1
    room_T1 = counts_T1 - above_TV.sum(-1, keepdim=True)
    if bool((tied_TV.sum(-1, keepdim=True) > room_T1).any()):
        tied_TV &= tied_TV.cumsum(-1) <= room_T1
    return scores_TV.masked_fill(~(above_TV | tied_TV), float("-inf"))
