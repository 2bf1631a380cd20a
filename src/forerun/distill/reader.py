"""The target reads given texts, and its likeliest next tokens after each of their tokens are kept.

Legend: B texts at once, T tokens of the longest, K scores kept for each row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.distill.network import Network
from forerun.distill.top_scores import top_scores
from forerun.distill.writer import NUM_KEPT, WrittenText

ROWS_AT_ONCE = 256  # whose scores are in memory at once


@torch.inference_mode()
def read_texts(network: Network, texts: Sequence[tuple[Sequence[int], int]]) -> list[WrittenText]:
    """Read some texts in one batched pass.

    Args:
        texts: token ids, and how many of them are the opening, which is not learnt from.
    """
    device = next(network.parameters()).device
    longest = max(len(ids) for ids, _ in texts)
    ids_BT = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in texts], device=device)
    hidden_BTH = network.hidden(ids_BT)
    num_kept = min(NUM_KEPT, network.spec.vocab_size)
    return [
        _written(network, ids, num_given, hidden_TH[: len(ids)], num_kept)
        for (ids, num_given), hidden_TH in zip(texts, hidden_BTH, strict=True)
    ]


def _written(network: Network, ids: Sequence[int], num_given: int, hidden_TH: Tensor, num_kept: int) -> WrittenText:
    """The text with the scores of the rows to learn from; the scores of other rows are 0."""
    first = max(num_given - 1, 0)
    parts = [
        top_scores(network.logits(rows).float().log_softmax(-1), num_kept)
        for rows in torch.split(hidden_TH[first:], ROWS_AT_ONCE)
    ]
    top_ids = torch.zeros(len(ids), num_kept, dtype=torch.int32)
    top_log_probs = torch.zeros(len(ids), num_kept, dtype=torch.float16)
    top_ids[first:] = torch.cat([ids.cpu().int() for _, ids in parts])
    top_log_probs[first:] = torch.cat([values.cpu().half() for values, _ in parts])
    return WrittenText(
        token_ids=torch.tensor(ids, dtype=torch.int32),
        num_given=num_given,
        top_ids=top_ids,
        top_log_probs=top_log_probs,
    )
