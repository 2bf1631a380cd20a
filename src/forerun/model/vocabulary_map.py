"""A draft whose vocabulary is a part of its target's: which of the target's tokens its ids stand for.

Legend: V the target's vocabulary, W the draft's.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class VocabularyMap:
    """Ids of a draft and of its target.

    Args:
        target_ids: int32 [W], strictly rising: the target's id of every id of the draft.
        draft_ids: int32 [V]: what the draft reads each of the target's ids as; for those that it does not have, a
            similar one.
    """

    target_ids: Tensor
    draft_ids: Tensor

    @classmethod
    def of_equal_ids(cls, *, num_target: int, num_draft: int) -> "VocabularyMap":
        """Of two models that have the same ids, but for some at the end that only one of them has.

        The draft reads those that only the target has as id 0, which may cost a guess; it never proposes its own.
        """
        target_ids = torch.arange(num_target, dtype=torch.int32)
        is_known = target_ids < num_draft
        return cls(target_ids=target_ids[is_known], draft_ids=target_ids * is_known)

    @cached_property
    def is_known(self) -> Tensor:
        """bool [V]: the draft has this very token, and can propose it."""
        return self.target_ids[self.draft_ids.long()] == self.draft_ids.new_tensor(range(len(self.draft_ids)))

    @property
    def num_columns(self) -> int:
        """W: the columns of the draft's logits that stand for a token of the target, which come first."""
        return len(self.target_ids)

    @cached_property
    def column_ids(self) -> Tensor | None:
        """`target_ids`, unless they are 0, 1, ...: the columns are then the tokens."""
        return None if int(self.target_ids[-1]) == self.num_columns - 1 else self.target_ids

    def read(self, token_ids: Sequence[int]) -> list[int]:
        """What the draft reads these tokens as; any number is read, since a process may be told any."""
        draft_ids = self._draft_ids
        num_ids = len(draft_ids)
        return [draft_ids[token_id] if token_id < num_ids else 0 for token_id in token_ids]

    def columns(self, token_ids: Sequence[int]) -> list[int]:
        """The columns of those of these tokens that the draft has."""
        draft_ids, is_known = self._draft_ids, self._is_known
        return [draft_ids[token_id] for token_id in token_ids if token_id < len(is_known) and is_known[token_id]]

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the draft does not have, so that it could not propose them."""
        return len(token_ids) - len(self.columns(token_ids))

    @cached_property
    def known_bits(self) -> bytes:
        """`is_known` with eight ids in a byte, the lowest bit first."""
        bits: bytes = np.packbits(self.is_known.numpy(), bitorder="little").tobytes()
        return bits

    @cached_property
    def _draft_ids(self) -> "array[int]":
        return array("i", self.draft_ids.tolist())

    @cached_property
    def _is_known(self) -> bytes:
        return bytes(self.is_known.tolist())
