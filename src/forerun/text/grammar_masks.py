"""Computes the tokens that a grammar allows after a text, and after every node of a draft tree that follows it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.core.errors import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class Phase(Enum):
    """The relation of a text to the grammar."""

    BEFORE = "before the mark after which the grammar begins"
    FREE = "no mark that triggers the grammar was written, or its grammar is complete"
    WITHIN = "the grammar applies"
    BROKEN = "the grammar does not allow the text"


class State(NamedTuple):
    """A text's state. For a text outside the grammar it has the last bytes, which may begin a mark."""

    phase: Phase
    tail: bytes = b""
    matcher: "LLMatcher | None" = None


class GrammarConstraint:
    """A grammar along one text. The allowed tokens depend only on the text, so they are the same with every drafter.

    Args:
        fresh: the grammar at its start.
        all_but_stops: int32 [W], the bits of all tokens but those that end an answer; see `masks`.
        after, trigger: see `core.grammar.Grammar`.
    """

    def __init__(
        self,
        fresh: "LLMatcher",
        tokens: "LLTokenizer",
        all_but_stops: NDArray[np.int32],
        *,
        after: bytes,
        trigger: bytes,
    ) -> None:
        self._fresh = fresh
        self._tokens = tokens
        self._all_but_stops = all_but_stops
        self._after = after
        self._trigger = trigger
        start = State(Phase.BEFORE) if after else State(Phase.FREE) if trigger else self._begun(b"")
        self._states = [start]  # the state of the text, then those of drafted tokens

    def commit(self, token_ids: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token_id in token_ids:
            self._states = [self._next(self._states[0], token_id)]

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer encodes them; the model may use others for the same text."""
        matcher = self._states[0].matcher
        return [] if matcher is None else matcher.compute_ff_tokens()

    def allowed_nodes(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[int]:
        """The nodes of a tree that the grammar allows, the root and their ancestors among them; ascending."""
        kept = [0]

        def enter(node: int) -> bool:
            if self._allows(token_ids[node]):
                kept.append(node)
            return kept[-1] == node

        with self._drafting():
            self._visit(token_ids, children_of(parents), 0, enter)
        return sorted(kept)

    def masks(self, token_ids: Sequence[int], parents: Sequence[int]) -> NDArray[np.int32] | None:
        """The tokens that may follow each node of a tree.

        Returns:
            int32 [T, W] with W = ceil(V / 32): bit t of a row, counted from the lowest bit of its first word, is set if
            token t may follow. None if every token may follow every node.

        Raises:
            GrammarError: no token may follow the root, or llguidance's limits are exceeded there.
        """
        rows = np.full((len(token_ids), len(self._all_but_stops)), -1, np.int32)
        with self._drafting():
            masked = [self._fill(rows[0])]

            def enter(node: int) -> bool:
                self._states.append(self._next(self._states[-1], token_ids[node]))
                masked.append(self._fill(rows[node]))
                self._retreat()
                return True

            fault = "" if (matcher := self._states[0].matcher) is None else matcher.get_error()
            if not rows[0].any():
                raise GrammarError(
                    "the grammar allows no further token here, but the text is not complete: change the grammar"
                    + (f" ({fault.partition('<state>')[0].strip()})" if fault else "")
                )
            self._visit(token_ids, children_of(parents), 0, enter)
        return rows if any(masked) else None

    @contextmanager
    def _drafting(self) -> Iterator[None]:
        """Work on a copy of the text's state, so that drafted tokens cannot change it."""
        text = self._states[0]
        if text.matcher is not None:
            self._states = [text._replace(matcher=text.matcher.deep_copy())]
        try:
            yield
        finally:
            self._states = [text]

    def _visit(
        self, token_ids: Sequence[int], children: Sequence[Sequence[int]], node: int, enter: Callable[[int], bool]
    ) -> None:
        """Call `enter` for the nodes below this one, depth first, in the state of their parent. If it returns True, go
        on below that node."""
        for child in children[node]:
            if enter(child) and children[child]:
                self._states.append(self._next(self._states[-1], token_ids[child]))
                self._visit(token_ids, children, child, enter)
                self._retreat()

    def _retreat(self) -> None:
        """Return to the state before the last token."""
        self._states.pop()
        if (matcher := self._states[-1].matcher) is not None:
            matcher.rollback(1)

    def _allows(self, token_id: int) -> bool:
        phase, _, matcher = self._states[-1]
        if matcher is not None:
            return matcher.validate_tokens([token_id]) == 1
        return phase is Phase.FREE or bool(self._all_but_stops[token_id // 32] >> token_id % 32 & 1)

    def _fill(self, row: NDArray[np.int32]) -> bool:
        """Write the tokens that may follow; False if every token may, and the row is left as it is."""
        phase, _, matcher = self._states[-1]
        match phase:
            case Phase.BEFORE:
                row[:] = self._all_but_stops
            case Phase.WITHIN:
                assert matcher is not None, "within the grammar there is a matcher"
                matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
                if matcher.is_error():
                    row[:] = 0
            case Phase.BROKEN:
                row[:] = 0
        return phase is not Phase.FREE

    def _next(self, state: State, token_id: int) -> State:
        """The state after a token. A matcher is advanced, and shared by the states before and after."""
        phase, tail, matcher = state
        if matcher is not None:
            matcher.consume_token(token_id)
            return self._unless_complete(state)
        if phase is Phase.BROKEN:
            return state
        mark = self._after if phase is Phase.BEFORE else self._trigger
        text = tail + self._tokens.decode_bytes([token_id])
        before, found, rest = text.partition(mark)
        if not found:
            return State(phase, before[max(0, len(before) - len(mark) + 1) :])
        if phase is Phase.BEFORE and self._trigger:
            return State(Phase.FREE, rest)
        return self._begun(rest)

    def _begun(self, written: bytes) -> State:
        """The grammar's state if the mark's last token continues with `written`. White space after thoughts is lost."""
        matcher = self._fresh.deep_copy()
        written = written if self._trigger else written.lstrip()
        token_ids = self._tokens.tokenize_bytes(written) if written else []
        if matcher.try_consume_tokens(token_ids) == len(token_ids):
            return self._unless_complete(State(Phase.WITHIN, matcher=matcher))
        return State(Phase.FREE, written) if self._trigger else State(Phase.BROKEN)

    def _unless_complete(self, state: State) -> State:
        """The state, or a free one if it completes a grammar that a mark may trigger again."""
        assert state.matcher is not None, "within the grammar there is a matcher"
        is_complete = state.matcher.is_stopped() and not state.matcher.is_error()
        return State(Phase.FREE) if self._trigger and is_complete else state


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """The children of every node of a tree."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    return children
