"""Saves the keys and values of earlier texts, so that a conversation can be resumed without being read again.

Legend: N blocks, L layers, B tokens of a block, S slots of the cache, K key/value heads, D head size.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from torch import Tensor

from forerun.core.errors import ConfigError
from forerun.core.shared_length import shared_length
from forerun.core.threads import inference, on_one_thread
from forerun.model.executor import TextMove
from forerun.model.mixer_rows import MixerRows, Snapshot
from forerun.model.tree_cache import TreeCache

BLOCK: Final = 32  # tokens: where two texts diverge, at most 31 rows are stored twice; saving copies 32 rows at a time


@dataclass(slots=True, eq=False)
class Block:
    """BLOCK tokens that follow those of `parent` in a text; the last block of a text may have fewer.

    Args:
        place: index of the block in the storage.
        is_whole: whether it has the rows of all layers, and not only of those without a window.
        used_at: number of the search that used the block last.
    """

    place: int
    parent: "Block | None" = None
    owner: str = ""
    token_ids: Sequence[int] = ()
    children: list["Block"] = field(default_factory=list)
    used_at: int = 0
    is_whole: bool = True


@dataclass(slots=True, eq=False)
class SavedPlace:
    """Where a text with states can be continued; `used_at` is the number of the last search of a text that has it."""

    snapshot: Snapshot
    used_at: int


class WarmTexts:
    """Earlier texts of a cache, as a tree of blocks in which texts share the blocks of a common prefix.

    When the storage is full, the least recently used block is dropped; a text loses its last blocks first. Texts of
    different owners share no block.

    If layers with a window hold only the end of a long text, only this end is saved for them. A text is found up to the
    last token whose windows are saved too. Of a model with mixers (`core.mixers`), it is found up to the last length at
    which it was saved: there a snapshot of its mixers' rows and states is kept. Half of the memory is for snapshots.
    When it is full, one of the text that was used least recently is dropped: the one behind which the fewest tokens
    have to be read again.

    Invariant: the rows of every block in the tree are complete. A block is added to the tree after its rows are written
    and removed before they are overwritten, so an interrupt can lose a text but cannot corrupt one.

    Args:
        cache: the cache whose texts are saved and restored.
        max_bytes: limit on all saved keys and values. Their storage is one tensor on the cache's device; on a CPU it
            takes memory only when it is filled.

    Raises:
        ConfigError: there is not enough memory for it.
    """

    def __init__(self, cache: TreeCache, max_bytes: int) -> None:
        self._cache = cache
        self._sliding = cache.sliding
        self._root = Block(place=-1)
        self._now = 0
        self._mixer_rows = cache.mixer_rows
        self._room_for_snapshots = max_bytes // 2 if cache.mixer_rows is not None else 0
        self._snapshots: dict[tuple[int, int], SavedPlace] = {}  # by the place of a text's last block, and its length
        self._found: tuple[int, int] | None = None  # the one that is restored next
        self._num_blocks = (max_bytes - self._room_for_snapshots) // (cache.bytes_per_slot * BLOCK)
        self._rows_N2LBKD = storage_of(cache, self._num_blocks)
        self._by_age: OrderedDict[int, Block] = OrderedDict()  # by place, the block used least recently first

    def find(self, token_ids: Sequence[int], owner: str, start: int = 0) -> int:
        """How many tokens of this text, from the first, are saved. They are not dropped before the next search, if they
        are more than `start`."""
        with self._cache.tell(TextMove(kind="find", token_ids=token_ids, owner=owner)):
            self._now += 1
            path = self._path(token_ids, owner)
            self._use([block for block, _ in path])
            for number, (block, num_tokens) in enumerate(self._matched(token_ids, owner)):
                for (place, length), saved in self._snapshots.items():
                    if place == block.place and length <= number * BLOCK + num_tokens:
                        saved.used_at = self._now
        length = sum(num_tokens for _, num_tokens in path)
        self._found = (path[-1][0].place, length) if length > start else None
        return length

    def save(self, token_ids: Sequence[int], owner: str) -> None:
        """Save `token_ids`, the beginning of the text in the cache, as far as there is room."""
        path = [self._root]
        with self._cache.tell(TextMove(kind="save", token_ids=token_ids, owner=owner)):
            for start in range(0, len(token_ids), BLOCK):
                block = self._hold(path[-1], token_ids[start : start + BLOCK], owner, start)
                if block is None:
                    break
                path.append(block)
            self._use(path[1:])
            if self._mixer_rows is not None and len(path) > 1 and (len(path) - 1) * BLOCK >= len(token_ids):
                self._snap(self._mixer_rows, path[-1], len(token_ids))

    def _snap(self, rows: MixerRows, block: Block, length: int) -> None:
        """Keep a snapshot of the present text with its last block, as far as there is room."""
        if (saved := self._snapshots.get((block.place, length))) is not None:
            saved.used_at = self._now
            return
        snapshot = rows.snapshot(length) if self._room_for_snapshots else None
        if snapshot is None or snapshot.num_bytes > self._room_for_snapshots:
            return
        while self._num_snapshot_bytes + snapshot.num_bytes > self._room_for_snapshots:
            least_missed = self._least_missed()
            if least_missed is None:
                return
            self._snapshots.pop(least_missed, None)
        self._snapshots[block.place, length] = SavedPlace(snapshot=snapshot, used_at=self._now)

    def _least_missed(self) -> tuple[int, int] | None:
        """The snapshot to drop next, of the text that was used least recently; None: the only one is restored next."""
        others = {key: saved.used_at for key, saved in self._snapshots.items() if key != self._found}
        keys = sorted((key for key in others if others[key] == min(others.values())), key=lambda key: key[1])
        if not keys:
            return None
        lengths = [0, *(length for _, length in keys)]
        reread = [end - before for before, end in pairwise(lengths)]
        return keys[reread.index(min(reread))]

    @property
    def _num_snapshot_bytes(self) -> int:
        return sum(saved.snapshot.num_bytes for saved in self._snapshots.values())

    def restore(self, token_ids: Sequence[int], owner: str, start: int) -> int:
        """Copy the saved rows of this text to the cache, from slot `start` on; return the slot after the last.

        The caller commits them.
        """
        path = self._path(token_ids, owner)
        first = 0
        with self._cache.tell(TextMove(kind="restore", token_ids=token_ids, owner=owner, start=start)):
            self._sliding.lose(max((end for end in ends_in_part(path) if end > start), default=0))
            for block, num_tokens in path:
                num_there = min(max(0, start - first), num_tokens)
                rows = self._rows(block, num_there, num_tokens)
                self._copy(self._slots(first + num_there, first + num_tokens), rows, is_whole=block.is_whole)
                first += num_tokens
            if self._mixer_rows is not None and path:
                self._mixer_rows.restore(self._snapshots[path[-1][0].place, first].snapshot)
            self._found = None
            self._use([block for block, _ in path])
        return first

    def forget(self, owner: str | None = None) -> None:
        """Drop the texts of this owner; None: of all."""
        with self._cache.tell(TextMove(kind="forget", owner=owner)):
            self._root.children = [block for block in self._root.children if owner not in (None, block.owner)]
            for block in list(self._by_age.values()):
                if owner in (None, block.owner):
                    self._by_age.move_to_end(block.place, last=False)  # The next to be overwritten.
                    self._drop_snapshots(block)

    def _path(self, token_ids: Sequence[int], owner: str) -> list[tuple[Block, int]]:
        """The blocks from which the beginning of the text can be restored, and how many tokens of each match: all,
        except in the last block."""
        path = self._matched(token_ids, owner)
        return self._resumable(path) if self._mixer_rows is None else self._up_to_snapshot(path, token_ids, owner)

    def _matched(self, token_ids: Sequence[int], owner: str) -> list[tuple[Block, int]]:
        """The blocks that match the beginning of the text, and how many tokens of each match."""
        path: list[tuple[Block, int]] = []
        for start in range(0, len(token_ids), BLOCK):
            parent = path[-1][0] if path else self._root
            block, num_shared = best_child(parent, token_ids[start : start + BLOCK], owner)
            if block is not None:
                path.append((block, num_shared))
            if num_shared < BLOCK:
                break
        return path

    def _up_to_snapshot(
        self, path: Sequence[tuple[Block, int]], token_ids: Sequence[int], owner: str
    ) -> list[tuple[Block, int]]:
        """The longest beginning of a path that ends at a snapshot, in its own last block or in one beside it that
        begins in the same way."""
        for number in range(len(path) - 1, -1, -1):
            parent = path[number - 1][0] if number else self._root
            own_ids = token_ids[number * BLOCK : (number + 1) * BLOCK]
            ends = [
                (count, block)
                for block in parent.children
                if block.owner == owner
                for count in range(1, shared_length(block.token_ids, own_ids) + 1)
                if (block.place, number * BLOCK + count) in self._snapshots
            ]
            if ends:
                count, block = max(ends, key=lambda end: end[0])
                return [*path[:number], (block, count)]
        return []

    def _resumable(self, path: list[tuple[Block, int]]) -> list[tuple[Block, int]]:
        """The longest beginning of a path after which a text can be resumed."""
        num_blocks = end = whole_from = 0
        for number, (block, num_tokens) in enumerate(path, 1):
            end += num_tokens
            if not block.is_whole:
                whole_from = end
            elif self._sliding.is_whole(end, whole_from):
                num_blocks = number
        return path[:num_blocks]

    def _hold(self, parent: Block, token_ids: Sequence[int], owner: str, start: int) -> Block | None:
        """Store these tokens, which are in the cache from slot `start` on; return their block, or None without room.

        If the text continues one whose last block is not full, that block is filled up.
        """
        block, num_shared = best_child(parent, token_ids, owner)
        if block is None or num_shared < min(len(token_ids), len(block.token_ids)):
            block = self._vacate()
            num_shared = 0
        if block is None:
            return None
        self._use([block])
        is_whole = start >= self._sliding.whole_from
        num_tokens = len(token_ids)
        is_completed = is_whole and not block.is_whole and num_tokens >= len(block.token_ids)
        if num_shared < num_tokens or is_completed:
            first = 0 if is_completed else num_shared
            block.is_whole = block.is_whole and is_whole
            rows = self._rows(block, first, num_tokens)
            slots = self._slots(start + first, start + num_tokens)
            self._copy(rows, slots, is_whole=is_whole)
            block.token_ids = tuple(token_ids)
            block.is_whole = is_whole
        if num_shared == 0:
            block.parent = parent
            block.owner = owner
            parent.children.append(block)
        return block

    def _vacate(self) -> Block | None:
        """A block outside the tree: a new one, or the least recently used one; None if this search uses them all."""
        if len(self._by_age) < self._num_blocks:
            block = Block(place=len(self._by_age))
            self._by_age[block.place] = block
            return block
        oldest = next(iter(self._by_age.values()), None)
        while oldest is not None and oldest.children:  # After an interrupt a parent may be older than its children.
            oldest = oldest.children[-1]
        if oldest is None or oldest.used_at == self._now:
            return None
        if oldest.parent is not None and oldest in oldest.parent.children:
            oldest.parent.children.remove(oldest)
        self._drop_snapshots(oldest)
        return oldest

    def _drop_snapshots(self, block: Block) -> None:
        """Drop those of texts that end in this block."""
        for key in [key for key in self._snapshots if key[0] == block.place]:
            del self._snapshots[key]

    def _use(self, path: Sequence[Block]) -> None:
        """Mark these blocks as used now, parents last, so that a block is dropped before its parent."""
        for block in reversed(path):
            block.used_at = self._now
            self._by_age.move_to_end(block.place)

    def _copy(self, target_2LBKD: Tensor, source_2LBKD: Tensor, *, is_whole: bool) -> None:
        """Copy the rows of all layers, or of those without a window."""
        if is_whole:
            copy_rows(target_2LBKD, source_2LBKD)
            return
        for layer in self._sliding.full_layers:
            copy_rows(target_2LBKD[:, layer], source_2LBKD[:, layer])

    def _rows(self, block: Block, first: int, end: int) -> Tensor:
        return self._rows_N2LBKD[block.place, :, :, first:end]

    def _slots(self, first: int, end: int) -> Tensor:
        return self._cache.storage_2LSKD[:, :, first:end]


def storage_of(cache: TreeCache, num_blocks: int) -> Tensor:
    """Storage for this many blocks, on the cache's device."""
    num_kinds, num_layers, _, num_heads, head_dim = cache.storage_2LSKD.shape
    try:
        return cache.storage_2LSKD.new_empty((num_blocks, num_kinds, num_layers, BLOCK, num_heads, head_dim))
    except RuntimeError as error:  # Torch's error without memory on a CPU; that of a GPU is a subclass.
        num_bytes = num_blocks * BLOCK * cache.bytes_per_slot
        raise ConfigError(
            f"there is no memory for saved texts of {num_bytes:,} bytes on {cache.storage_2LSKD.device}: set "
            "cache_bytes to less, or to 0 for none"
        ) from error


def ends_in_part(path: Sequence[tuple[Block, int]]) -> list[int]:
    """The places in the text where blocks with only a part of the layers end."""
    ends = accumulate(num_tokens for _, num_tokens in path)
    return [end for (block, _), end in zip(path, ends, strict=True) if not block.is_whole]


def best_child(parent: Block, token_ids: Sequence[int], owner: str) -> tuple[Block | None, int]:
    """The child of this owner with the longest common prefix, and its length; (None, 0) if no child shares a token."""
    best = None
    most = 0
    for child in parent.children:
        num_shared = shared_length(child.token_ids, token_ids) if child.owner == owner else 0
        if num_shared > most:
            best = child
            most = num_shared
    return best, most


def copy_rows(target: Tensor, source: Tensor) -> None:
    """Copy rows between cache and storage."""
    with inference():
        on_one_thread(lambda: target.copy_(source))
