"""Which tokens may follow a text, and every node of a draft tree that follows it: a grammar, or a limit on thoughts."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A restriction along one text. The tokens that it allows depend only on the text, and so not on the drafter.

    Trees are given as `token_ids` and `parents`, as in `speculation.tree`; node 0 is the text's last token.
    """

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        ...

    def forced(self) -> list[int]:
        """The tokens that must come next; none if the model can choose."""
        ...

    def allowed_nodes(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a tree that are allowed, the root and their ancestors among them; ascending."""
        ...

    def masks(self, token_ids: Sequence[int], parents: Sequence[int]) -> NDArray[np.int32] | None:
        """The tokens that may follow each node of a tree.

        Returns:
            int32 [T, W] with W = ceil(V / 32): bit t of a row, counted from the lowest bit of its first word, is set if
            token t may follow. None if every token may follow every node.

        Raises:
            GrammarError: no token may follow the root.
        """
        ...


class BothConstraints:
    """Two constraints on one text. Where no token fulfils both, the first one decides."""

    def __init__(self, first: Constraint, second: Constraint) -> None:
        self._first = first
        self._second = second

    def commit(self, token_ids: Sequence[int]) -> None:
        self._first.commit(token_ids)
        self._second.commit(token_ids)

    def forced(self) -> list[int]:
        return self._second.forced() or self._first.forced()

    def allowed_nodes(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[int]:
        others = set(self._second.allowed_nodes(token_ids, parents))
        return [node for node in self._first.allowed_nodes(token_ids, parents) if node in others]

    def masks(self, token_ids: Sequence[int], parents: Sequence[int]) -> NDArray[np.int32] | None:
        first = self._first.masks(token_ids, parents)
        second = self._second.masks(token_ids, parents)
        if first is None or second is None:
            return second if first is None else first
        both = first & second
        return np.where(both.any(axis=1, keepdims=True), both, first)


def only_token(token_id: int, num_words: int) -> NDArray[np.int32]:
    """int32 [W]: the mask that allows one token."""
    row = np.zeros(num_words, np.uint32)
    row[token_id // 32] = 1 << token_id % 32
    return row.view(np.int32)
