"""Cache rows of a draft tree: after the text in the target's cache, or in the draft's separate cache."""

from collections.abc import Iterable

from torch import Tensor

from forerun.core.shared_length import shared_length
from forerun.core.sublayers import SkipSet
from forerun.model.executor import ForwardInput
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.model.self_drafting import DraftRunner
from forerun.speculation.tree import AncestryRows, TokenTree

MAX_CATCH_UP = 16  # committed tokens that join the root's expansion; more are prefilled first


class DraftRows:
    """Rows of expanded nodes after the text in the target's cache. They are never committed there.

    Invariants: a node has a row exactly if it was expanded; an expanded node's parent was expanded; rows are in the
    order of their nodes.

    Args:
        max_rows: limit on the rows.
    """

    def __init__(self, runner: DraftRunner, max_rows: int) -> None:
        self.runner = runner
        self._max_rows = max_rows
        self._forget_nodes()

    @property
    def is_rooted(self) -> bool:
        """True once the root has been expanded."""
        return 0 in self._rows

    def has_room(self, num_nodes: int) -> bool:
        """Whether this many more nodes can be expanded."""
        num_new = num_nodes + (0 if self.is_rooted else MAX_CATCH_UP)
        return self.runner.cache.num_tree + num_new <= self._max_rows

    def expand(
        self, tree: TokenTree, batch: list[int], token_ids: list[int], text: list[int], skipped: SkipSet
    ) -> Tensor:
        """Run the nodes of `batch`, after any text that the cache lacks; return their logits [len(batch), V].

        Args:
            token_ids: tokens of the nodes.
            text: the committed tokens, the root last.
            skipped: sublayers to skip.
        """
        cache = self.runner.cache
        catch_up = [] if self.is_rooted else self._lacking(text)
        first_row = cache.num_tree
        root_position = len(text) - 1
        self._place(tree, batch, len(catch_up))
        num_rows = first_row + len(catch_up) + len(batch)
        inputs = ForwardInput(
            token_ids=[*catch_up, *token_ids],
            positions=[
                *range(root_position - len(catch_up), root_position),
                *(root_position + tree.depths[node] for node in batch),
            ],
            first_slot=cache.end,
            prefix_len=cache.committed_len,
            ancestry=self._sees.matrix(first_row) if num_rows > 1 else None,
            num_logit_rows=len(batch),
            skipped=skipped,
        )
        return self._run(tree, batch, inputs)

    def start_text(self, text: list[int], owner: str) -> None:
        """Start a request of this owner; the root is the last token of `text`."""
        self._forget_nodes()

    def prefill(self, text: list[int]) -> bool:
        """Run one wide pass over missing text if the cache lacks much of it; False if it does not."""
        return False

    def told(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        """Update the rows after the tokens along `path` were committed.

        Args:
            tree: the new tree.
            places: retained nodes, old number to new.
            text: the committed tokens, the root last.
        """
        assert not places, "rows of a shared cache do not outlive a round"
        self._forget_nodes()

    def forget(self) -> None:
        """Drop all cached texts, if the cache is the draft's."""
        return

    def _run(self, tree: TokenTree, batch: list[int], inputs: ForwardInput) -> Tensor:
        return self.runner.forward(inputs).logits

    def _forget_nodes(self) -> None:
        self._rows: dict[int, int] = {}  # expanded node to its row
        self._sees = AncestryRows()  # for every row, the rows it attends to

    def _lacking(self, text: list[int]) -> list[int]:
        """Committed tokens before the root that the cache lacks."""
        return []

    def _place(self, tree: TokenTree, batch: list[int], num_catch_up: int) -> None:
        """Give every node of `batch` a row that attends to its ancestors' rows, after rows for the missing text."""
        rows = self._rows
        sees = self._sees
        for row in range(num_catch_up):
            sees.add(row - 1)
        for node in batch:
            rows[node] = sees.add(rows[tree.parents[node]] if node else num_catch_up - 1)


class OwnRows(DraftRows):
    """Rows in the draft's separate cache. After the cached text come one row for each token committed since, and one
    for each expanded node.

    When tokens are committed, the rows of accepted nodes become text and the rows of retained nodes stay, without
    another pass. Without lookup, if the root was expanded, at most two tokens lack a row: an accepted leaf that was
    never expanded, and the new root.
    Source: SwiftSpec, arXiv 2506.11309, section 3 ("evolving tree cache").
    """

    def __init__(self, runner: Runner, max_rows: int) -> None:
        super().__init__(runner, max_rows)
        self._own = runner

    def start_text(self, text: list[int], owner: str) -> None:
        self._own.recall(text[:-1], owner)
        self._own.cut(shared_length(self._own.cached_ids, text[:-1]))
        self._forget_nodes()

    def prefill(self, text: list[int]) -> bool:
        num_cached = len(self._own.cached_ids)
        num_needed = len(text) - 1
        if num_needed - num_cached < MAX_CATCH_UP:
            return False
        assert not self.is_rooted, "a tree grows on committed text"
        self._own.sync(text[: min(num_cached + PREFILL_ROWS, num_needed)])
        return True

    def told(self, tree: TokenTree, path: Iterable[int], places: dict[int, int], text: list[int]) -> None:
        rows = self._rows
        kept = [node for node in sorted(places) if node in rows]
        if self.is_rooted:
            committed = [*range(rows[0] + 1), *(rows[node] for node in path if node in rows)]
            first = len(self._own.cached_ids)
            self._own.keep([*committed, *(rows[node] for node in kept)], text[first : first + len(committed)])
        self._forget_nodes()
        for node in map(places.__getitem__, kept):
            self._rows[node] = self._sees.add(self._rows.get(tree.parents[node], -1))

    def forget(self) -> None:
        self._own.forget()

    def _lacking(self, text: list[int]) -> list[int]:
        return text[len(self._own.cached_ids) : -1]
