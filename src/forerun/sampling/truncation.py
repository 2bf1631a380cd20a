"""Truncation: the filters top_k, top_p and min_p.

Each filter keeps the likeliest tokens of a row, so all three together amount to one number per row: how many are kept.
To find it, only the leading tokens have to be sorted, and nearly always few: a partial sort of 256 of 150,000 tokens
takes a hundredth of the time of a full sort.

Which tokens survive in a row must depend only on that row, or a drafted node could change the text. So a row that keeps
more tokens than were sorted is computed again on its own, and probabilities are summed as integers, whose sum does not
depend on the order.

Legend: T rows, V vocabulary, R tokens left by top_k, K leading tokens that are sorted.
"""

import torch
from torch import Tensor

from forerun.core.config import SamplingParams

LEADING_TOKENS = 256
GROWTH = 16  # factor on the number of sorted tokens when a row may keep more
SHARE_BITS = 40  # precise enough for top_p to 1e-7 with 150,000 tokens, and sums of 8 million tokens fit in 63 bits


def filter_scores(scores_TV: Tensor, params: SamplingParams) -> Tensor:
    """Set tokens outside top_k, top_p or min_p to minus infinity; NaN is kept, so that the sampler rejects it.

    Of tied tokens the lowest ids are kept, so exactly top_k survive. top_p applies to the tokens that top_k left, and
    keeps the token with which the sum reaches top_p, so at least one survives. min_p keeps tokens at least min_p times
    as likely as the likeliest.
    """
    is_cut = 0 < params.top_k < scores_TV.shape[-1]
    race_TR = scores_TV.topk(params.top_k, dim=-1, sorted=False).values if is_cut else scores_TV
    mass_T1 = shares(race_TR, race_TR.amax(-1, keepdim=True)).sum(-1, keepdim=True) if params.top_p < 1.0 else None
    return keep_leading(scores_TV, *find_last(race_TR, mass_T1, params, LEADING_TOKENS))


def find_last(
    race_TR: Tensor, mass_T1: Tensor | None, params: SamplingParams, num_leaders: int
) -> tuple[Tensor, Tensor]:
    """[T, 1] each: the score of the last token kept, and how many tokens with this score are kept."""
    num_leaders = min(num_leaders, race_TR.shape[-1])
    leaders_TK = race_TR.topk(num_leaders, dim=-1).values
    counts_T1 = count_kept(leaders_TK, mass_T1, params)
    last_T1 = leaders_TK.gather(1, counts_T1 - 1)
    room_T1 = counts_T1 - (leaders_TK > last_T1).sum(-1, keepdim=True)
    if num_leaders < race_TR.shape[-1]:
        for row in (counts_T1[:, 0] == num_leaders).nonzero()[:, 0].tolist():
            alone = slice(row, row + 1)
            mass_11 = None if mass_T1 is None else mass_T1[alone]
            last_T1[alone], room_T1[alone] = find_last(race_TR[alone], mass_11, params, num_leaders * GROWTH)
    return last_T1, room_T1


def count_kept(leaders_TK: Tensor, mass_T1: Tensor | None, params: SamplingParams) -> Tensor:
    """[T, 1]: how many leading tokens of each row are kept, at least one; `mass` is the sum of all shares."""
    best_T1 = leaders_TK[:, :1]
    keep_TK = torch.ones_like(leaders_TK, dtype=torch.bool)
    if mass_T1 is not None:
        shares_TK = shares(leaders_TK, best_T1)
        keep_TK &= shares_TK.cumsum(-1) - shares_TK < mass_T1.double() * params.top_p
    if params.min_p > 0.0:
        keep_TK &= (leaders_TK - best_T1).exp() >= params.min_p
    return keep_TK.sum(-1, keepdim=True).clamp_(min=1)


def shares(scores: Tensor, best_T1: Tensor) -> Tensor:
    """Probabilities relative to the best token's, as integers; meaningless in a row with NaN or infinity."""
    return (scores - best_T1).exp_().mul_(2.0**SHARE_BITS).to(torch.int64)


def keep_leading(scores_TV: Tensor, last_T1: Tensor, room_T1: Tensor) -> Tensor:
    """Keep the tokens with scores above each row's last one, and as many with an equal score as there is room for."""
    is_out_TV = scores_TV < last_T1
    is_tied_TV = scores_TV == last_T1
    if bool((is_tied_TV.sum(-1, keepdim=True) > room_T1).any()):  # the next line changes nothing in other rows
        is_out_TV |= is_tied_TV & (is_tied_TV.cumsum(-1) > room_T1)
    return scores_TV.masked_fill(is_out_TV, float("-inf"))
