"""Truncation before the draw: which tokens top_k, top_p and min_p leave in the race.

Each filter keeps some leading tokens of a row, so that the three together are one number a row. Finding it needs the
leading tokens in order, nearly always few of them: a partial sort of 256 of 150,000 tokens takes a hundredth of the
time of a whole one.

What stays in a row is a function of that row alone, to the bit, else a drafted neighbour could change the text: a row
that keeps more tokens than were sorted is done again alone, and probabilities are added up as whole numbers, whose sum
is the same in any order.

Legend: T rows, V vocabulary, R tokens in the race for top_p, K leading tokens looked at.
"""

import torch
from torch import Tensor

from forerun.core.config import SamplingParams

LEADING_TOKENS = 256
GROWTH = 16  # factor on the number of sorted tokens, when a row may keep more
SHARE_BITS = 40  # fine enough for top_p to 1e-7 in 150,000 tokens, and sums of 8 million tokens stay within 63 bits


def filter_scores(scores_TV: Tensor, params: SamplingParams) -> Tensor:
    """Set tokens outside top_k, top_p or min_p to minus infinity; NaN stays, for the sampler to refuse.

    Ties are broken by the lowest id, so that exactly top_k tokens stay. top_p looks at what top_k left; the token that
    carries the sum over it is kept, hence at least one is. min_p keeps tokens at least min_p times as likely as the
    likeliest.
    """
    is_cut = 0 < params.top_k < scores_TV.shape[-1]
    race_TR = scores_TV.topk(params.top_k, dim=-1, sorted=False).values if is_cut else scores_TV
    mass_T1 = shares(race_TR, race_TR.amax(-1, keepdim=True)).sum(-1, keepdim=True) if params.top_p < 1.0 else None
    return keep_leading(scores_TV, *find_last(race_TR, mass_T1, params, LEADING_TOKENS))


def find_last(
    race_TR: Tensor, mass_T1: Tensor | None, params: SamplingParams, num_leaders: int
) -> tuple[Tensor, Tensor]:
    """[T, 1] each: the score of the last token kept, and how many tokens of this score are."""
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
    """[T, 1]: how many leading tokens of each row stay, at least one; `mass` is the sum of shares in the race."""
    best_T1, keep_TK = leaders_TK[:, :1], torch.ones_like(leaders_TK, dtype=torch.bool)
    if mass_T1 is not None:
        shares_TK = shares(leaders_TK, best_T1)
        keep_TK &= shares_TK.cumsum(-1) - shares_TK < mass_T1.double() * params.top_p
    if params.min_p > 0.0:
        keep_TK &= (leaders_TK - best_T1).exp() >= params.min_p
    return keep_TK.sum(-1, keepdim=True).clamp_(min=1)


def shares(scores: Tensor, best_T1: Tensor) -> Tensor:
    """How likely tokens are next to the best one, in whole numbers; of no meaning in a row with NaN or infinity."""
    return (scores - best_T1).exp_().mul_(2.0**SHARE_BITS).to(torch.int64)


def keep_leading(scores_TV: Tensor, last_T1: Tensor, room_T1: Tensor) -> Tensor:
    """Keep the tokens above the last one kept of each row, and of those that equal it as many as there is room for."""
    is_out_TV, is_tied_TV = scores_TV < last_T1, scores_TV == last_T1
    if bool((is_tied_TV.sum(-1, keepdim=True) > room_T1).any()):  # rows with room for all their ties lose none here
        is_out_TV |= is_tied_TV & (is_tied_TV.cumsum(-1) > room_T1)
    return scores_TV.masked_fill(is_out_TV, float("-inf"))
