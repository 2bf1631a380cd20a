"""Which of the target's tokens a draft has.

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
COVERED: Final = 0.985  # of what the target says, by a draft's tokens
STEP: Final = 1024  # vocabularies are multiples of it


def count_tokens(texts: Iterable[WrittenText], vocab_size: int) -> Tensor:
    """float64 [V]: how often the target would say each token after the rows of its texts, by its own chances."""
    counts_V = torch.zeros(vocab_size, dtype=torch.float64)
    for text in texts:
        ids, chances = text.top_ids[text.first_row :], text.top_log_probs[text.first_row :].double().exp()
        counts_V.index_add_(0, ids.flatten().long(), chances.flatten())
    return counts_V


def enough_tokens(counts_V: Tensor) -> int:
    """How many of the most frequent tokens make up `COVERED` of all."""
    shares_V = counts_V.sort(descending=True).values.cumsum(0) / counts_V.sum()
    num_tokens = int((shares_V < COVERED).sum()) + 1
    return min(-(-num_tokens // STEP) * STEP, len(counts_V))


def choose_vocabulary(counts_V: Tensor, num_tokens: int, always: Sequence[int], embedding_VH: Tensor) -> VocabularyMap:
    """The `num_tokens` most frequent tokens and those of `always`; the others are read as the most similar of them.

    Args:
        embedding_VH: the target's, by whose angles tokens are compared.
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
