"""Limits the tokens of a model's thoughts: after the last one, the tokens of the closing mark are forced."""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.text.constraint import only_token
from forerun.text.detokenizer import num_unfinished_bytes
from forerun.text.output.text_source import SPACE
from forerun.text.output.thoughts import ThoughtMarks
from forerun.text.tokenizer import Tokenizer

HARMONY: Final = ("<|channel|>analysis<|message|>", "<|end|>")  # around gpt-oss's thoughts
MOST_LATE: Final = 3  # tokens by which a thought may exceed its limit, to complete a character


class ThoughtPhase(Enum):
    """The relation of a text to its thought."""

    AHEAD = "a thought may begin here"
    WITHIN = "the text is in a thought"
    OVER = "no thought can begin any more"


class ThoughtState(NamedTuple):
    """The state of a text.

    Args:
        num_tokens: tokens of thoughts so far.
        tail: the last bytes, which may begin a mark.
        num_closed: tokens of the closing mark that were forced so far.
        last_id: the last token; -1 at the start of the answer.
    """

    phase: ThoughtPhase
    num_tokens: int = 0
    tail: bytes = b""
    num_closed: int = 0
    last_id: int = -1


class ThoughtLimit:
    """A `Constraint` that ends thoughts after `max_tokens` tokens, up to 3 more if a character is incomplete there.

    Once the limit is reached, no other thought can begin, if a special token marks its beginning. With 0 tokens, a
    thought that the prompt has opened is closed at once.

    Args:
        marks: see `ThoughtMarks`.
        vocab_size: V, the rows of the model's output projection.
    """

    def __init__(self, tokenizer: Tokenizer, marks: ThoughtMarks, max_tokens: int, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._is_repeated = not marks.end  # gpt-oss's thoughts are messages, of which an answer may have several
        begin, end = HARMONY if self._is_repeated else (marks.begin, marks.end)
        self._begin = begin.encode()
        self._end = end.encode()
        self._max_tokens = max_tokens
        self._num_words = (vocab_size + 31) // 32
        self._closing_ids = tokenizer.encode_inside(end)
        begin_ids = tokenizer.encode_inside(begin)
        is_marked = begin_ids[0] in tokenizer.added_ids
        self._before_forbidden = begin_ids[0] if is_marked and len(begin_ids) > 1 else None  # None: anywhere
        self._forbidden = begin_ids[min(1, len(begin_ids) - 1)] if is_marked else None
        self._state = ThoughtState(ThoughtPhase.WITHIN if marks.is_open else ThoughtPhase.AHEAD)  # of the text

    def commit(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self._state = self._next(self._state, token_id)

    def forced(self) -> list[int]:
        return self._closing_ids[self._state.num_closed :] if self._is_closing(self._state) else []

    def allowed_nodes(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[int]:
        kept = [0]
        states = self._states(token_ids, parents)
        for node in range(1, len(parents)):
            if parents[node] in kept and self._allows(states[parents[node]], token_ids[node]):
                kept.append(node)
        return kept

    def masks(self, token_ids: Sequence[int], parents: Sequence[int]) -> NDArray[np.int32] | None:
        states = self._states(token_ids, parents)
        if not any(self._is_closing(state) or self._forbids(state) for state in states):
            return None
        rows = np.full((len(states), self._num_words), -1, np.int32)
        for row, state in zip(rows, states, strict=True):
            if self._is_closing(state):
                row[:] = only_token(self._closing_ids[state.num_closed], self._num_words)
            elif self._forbidden is not None and self._forbids(state):
                row ^= only_token(self._forbidden, self._num_words)
        return rows

    def _states(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[ThoughtState]:
        """The state of the text with the path to each node."""
        states = [self._state]
        for node in range(1, len(parents)):
            states.append(self._next(states[parents[node]], token_ids[node]))
        return states

    def _allows(self, state: ThoughtState, token_id: int) -> bool:
        if self._is_closing(state):
            return token_id == self._closing_ids[state.num_closed]
        return not (token_id == self._forbidden and self._forbids(state))

    def _is_closing(self, state: ThoughtState) -> bool:
        """Whether the next token must be one of the closing mark."""
        num_late = state.num_tokens - self._max_tokens
        if state.phase is not ThoughtPhase.WITHIN or num_late < 0:
            return False
        return state.num_closed > 0 or num_late >= MOST_LATE or not num_unfinished_bytes(state.tail)

    def _forbids(self, state: ThoughtState) -> bool:
        """Whether the token that begins a thought is forbidden after this text."""
        is_spent = state.phase is not ThoughtPhase.WITHIN and state.num_tokens >= self._max_tokens
        return is_spent and self._before_forbidden in (None, state.last_id)

    def _next(self, state: ThoughtState, token_id: int) -> ThoughtState:
        """The state after a token."""
        if self._is_closing(state) and token_id == self._closing_ids[state.num_closed]:
            if state.num_closed + 1 == len(self._closing_ids):
                return self._closed(state, b"", token_id)
            return state._replace(num_closed=state.num_closed + 1, last_id=token_id)
        if state.phase is ThoughtPhase.OVER:
            return state._replace(last_id=token_id)
        text = state.tail + self._tokenizer.bytes_of(token_id)
        if state.phase is ThoughtPhase.WITHIN:
            _, mark, rest = text.partition(self._end)
            if mark:
                return self._closed(state, rest, token_id)
            tail = text[-max(len(self._end) - 1, MOST_LATE) :]
            return ThoughtState(ThoughtPhase.WITHIN, state.num_tokens + 1, tail, last_id=token_id)
        return self._ahead(state, text, token_id)

    def _ahead(self, state: ThoughtState, text: bytes, token_id: int) -> ThoughtState:
        """The state of a text that may begin a thought: at its start, or in any message of gpt-oss."""
        before, mark, rest = text.partition(self._begin)
        is_here = self._is_repeated or not before.strip(SPACE.encode())
        if mark and is_here:
            return ThoughtState(ThoughtPhase.WITHIN, state.num_tokens, rest, last_id=token_id)
        if self._is_repeated:
            tail = text[-(len(self._begin) - 1) :]
        else:
            tail = text.lstrip(SPACE.encode())
            if not self._begin.startswith(tail):
                return ThoughtState(ThoughtPhase.OVER, state.num_tokens, last_id=token_id)
        return ThoughtState(ThoughtPhase.AHEAD, state.num_tokens, tail, last_id=token_id)

    def _closed(self, state: ThoughtState, rest: bytes, token_id: int) -> ThoughtState:
        """The state after a thought."""
        if self._is_repeated:
            return ThoughtState(ThoughtPhase.AHEAD, state.num_tokens, rest, last_id=token_id)
        return ThoughtState(ThoughtPhase.OVER, state.num_tokens, last_id=token_id)
