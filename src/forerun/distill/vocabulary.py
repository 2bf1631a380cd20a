"""Choose which of the target's tokens a draft has.

Legend: V the target's vocabulary, W the draft's, H hidden size.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.distill.writer import WrittenText
from forerun.model.vocabulary_map import VocabularyMap

CHUNK: Final = 4096  # unknown tokens compared at once
COVERED: Final = 0.985  # share of the target's output that the draft's tokens cover
STEP: Final = 1024  # vocabulary sizes are multiples of this


def count_tokens(texts: Iterable[WrittenText], vocab_size: int) -> Tensor:
    """float64 [V]: the expected count of each token, summed from the target's probabilities over all rows."""
    counts_V = torch.zeros(vocab_size, dtype=torch.float64)
    for text in texts:
        ids, chances = text.top_ids[text.first_row :], text.top_log_probs[text.first_row :].double().exp()
        counts_V.index_add_(0, ids.flatten().long(), chances.flatten())
    return counts_V


def enough_tokens(counts_V: Tensor) -> int:
    """How many of the most frequent tokens make up the share `COVERED` of all counts."""
    shares_V = counts_V.sort(descending=True).values.cumsum(0) / counts_V.sum()
    num_tokens = int((shares_V < COVERED).sum()) + 1
    return min(-(-num_tokens // STEP) * STEP, len(counts_V))


def choose_vocabulary(counts_V: Tensor, num_tokens: int, always: Sequence[int], embedding_VH: Tensor) -> VocabularyMap:
    """The `num_tokens` most frequent tokens, those of `always` included; other tokens map to the most similar of them.

    Args:
        embedding_VH: the target's embedding; similarity is the cosine of its rows.
    """
    ranked_V = counts_V.clone()
    ranked_V[list(always)] = torch.inf
    num_tokens = min(max(num_tokens, len(set(always))), len(counts_V))
    target_ids_W = ranked_V.topk(num_tokens).indices.sort().values
    directions_VH = functional.normalize(embedding_VH.float(), dim=1)
    known_WH = directions_VH[target_ids_W]
    nearest = [(chunk @ known_WH.T).argmax(1) for chunk in torch.split(directions_VH, CHUNK)]
    draft_ids_V = torch.cat(nearest)
    draft_ids_V[target_ids_W] = torch.arange(len(target_ids_W), device=draft_ids_V.device)
    return VocabularyMap(target_ids=target_ids_W.int(), draft_ids=draft_ids_V.int())
