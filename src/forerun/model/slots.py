"""Which slot of the cache holds which token. No tensors."""

from collections.abc import Sequence


class SlotTable:
    """Slots [0, committed_len) hold the committed text in order; the next num_tree slots hold tree rows.

    Rows are numbered from 0 at slot committed_len. Only the cache that owns the table may change it.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.committed_len = 0
        self.num_tree = 0

    @property
    def end(self) -> int:
        return self.committed_len + self.num_tree

    def can_reserve(self, num_rows: int) -> bool:
        return self.end + num_rows <= self.capacity

    def reserve(self, num_rows: int) -> int:
        """Append tree rows; return the first one's slot."""
        assert self.can_reserve(num_rows), f"{num_rows} rows after slot {self.end} exceed the capacity {self.capacity}"
        first = self.end
        self.num_tree += num_rows
        return first

    def keep(self, rows: Sequence[int], num_committed: int) -> list[int]:
        """Keep tree `rows` in the given order, commit the first `num_committed`, drop the rest.

        Returns:
            The old slot of each kept row; its new slot is the old committed_len plus its place in the list.
        """
        assert not rows or 0 <= min(rows) <= max(rows) < self.num_tree, (
            f"rows {list(rows)} of a tree of {self.num_tree}"
        )
        assert len(set(rows)) == len(rows), f"rows {list(rows)} name one twice"
        sources = [self.committed_len + row for row in rows]
        self.committed_len += num_committed
        self.num_tree = len(rows) - num_committed
        return sources

    def adopt(self, num_tokens: int) -> None:
        """Commit so many slots behind the text, whatever lies there; forget every tree row."""
        assert self.committed_len + num_tokens <= self.capacity, f"{num_tokens} tokens after {self.committed_len}"
        self.committed_len += num_tokens
        self.num_tree = 0

    def truncate(self, length: int) -> None:
        """Forget every tree row and all committed tokens from `length` on."""
        assert 0 <= length <= self.committed_len, f"length {length} of {self.committed_len} committed"
        self.committed_len = length
        self.num_tree = 0
