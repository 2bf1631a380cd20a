"""Maps the token ids of a draft to those of its target, whose vocabulary may be larger.

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
    """Maps token ids of a draft to ids of its target, and back.

    Args:
        target_ids: int32 [W], strictly rising: the target's id of every id of the draft.
        draft_ids: int32 [V]: the draft's id of every id of the target; for tokens that the draft does not have, the id
            of a similar token.
    """

    target_ids: Tensor
    draft_ids: Tensor

    @classmethod
    def of_equal_ids(cls, *, num_target: int, num_draft: int) -> "VocabularyMap":
        """The map of two models with the same ids, except that one of them may have more at the end.

        The draft reads ids that only the target has as 0, which may make its guesses worse. It never proposes ids that
        only the draft has.
        """
        target_ids = torch.arange(num_target, dtype=torch.int32)
        is_known = target_ids < num_draft
        return cls(target_ids=target_ids[is_known], draft_ids=target_ids * is_known)

    @cached_property
    def is_known(self) -> Tensor:
        """bool [V]: True if the draft has this token and can propose it."""
        return self.target_ids[self.draft_ids.long()] == self.draft_ids.new_tensor(range(len(self.draft_ids)))

    @property
    def num_columns(self) -> int:
        """W: how many columns of the draft's logits, from the first, are tokens of the target."""
        return len(self.target_ids)

    @cached_property
    def column_ids(self) -> Tensor | None:
        """`target_ids`, or None if they are 0, 1, ...: the column numbers are then the token ids."""
        return None if int(self.target_ids[-1]) == self.num_columns - 1 else self.target_ids

    def read(self, token_ids: Sequence[int]) -> list[int]:
        """The draft's ids of these tokens. Ids outside the vocabulary become 0, as a remote process may send any."""
        draft_ids = self._draft_ids
        num_ids = len(draft_ids)
        return [draft_ids[token_id] if token_id < num_ids else 0 for token_id in token_ids]

    def columns(self, token_ids: Sequence[int]) -> list[int]:
        """The columns of the tokens that the draft has; the others are left out."""
        draft_ids = self._draft_ids
        is_known = self._is_known
        return [draft_ids[token_id] for token_id in token_ids if token_id < len(is_known) and is_known[token_id]]

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens the draft does not have and so could not propose."""
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
