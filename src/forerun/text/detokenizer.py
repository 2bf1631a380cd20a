"""Converts token ids to text, one at a time, until the text ends."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.steps import FinishReason
from forerun.text.control_tokens import REPLACEMENT
from forerun.text.output.text_source import num_held
from forerun.text.output.thoughts import ThoughtDivider, ThoughtMarks
from forerun.text.tokenizer import Tokenizer

MAX_EAGER_TOKENS: Final = 8
# Beginnings of characters in UTF-8 (the Unicode Standard, table 3-7). Python's own incremental decoder also waits for
# more after the first two bytes of a surrogate, which is not a character.
UNFINISHED: Final = re.compile(
    rb"(?:[\xC2-\xDF]|\xE0[\xA0-\xBF]?|[\xE1-\xEC\xEE\xEF][\x80-\xBF]?|\xED[\x80-\x9F]?"
    rb"|\xF0(?:[\x90-\xBF][\x80-\xBF]?)?|[\xF1-\xF3][\x80-\xBF]{0,2}|\xF4(?:[\x80-\x8F][\x80-\xBF]?)?)\Z"
)


class TextAssembly:
    """An answer while it is generated: its ids, its text, and why it ended.

    A token that ends the text belongs to the ids. The text contains neither that token nor a stop string, nor an
    incomplete last character.

    Args:
        thoughts: the marks of the model's thoughts, in which no stop string counts; None: they count everywhere.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        eos_ids: Sequence[int],
        max_new_tokens: int,
        shown_tokens: Sequence[str],
        thoughts: ThoughtMarks | None = None,
    ) -> None:
        known = tokenizer.id_of_added
        self._decoder = IncrementalDecoder(tokenizer, {known[text]: text for text in shown_tokens if text in known})
        self._stops = StopStrings(params.stop)
        self._divider = ThoughtDivider(thoughts) if thoughts is not None and params.stop else None
        self._stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else frozenset(eos_ids))
        self._max_new_tokens = max_new_tokens
        self.token_ids: list[int] = []
        self.text = ""
        self.finish: FinishReason | None = None

    @property
    def stop(self) -> str:
        """The stop text that ended the answer; "" if none did."""
        return self._stops.found

    def add(self, token_ids: Sequence[int]) -> tuple[tuple[int, ...], str]:
        """Append ids until the text ends; return those taken and the text they add."""
        start = len(self.token_ids)
        shown = len(self.text)
        for token_id in token_ids:
            self._add_one(token_id)
            if self.finish is not None:
                break
        return tuple(self.token_ids[start:]), self.text[shown:]

    def end(self, reason: FinishReason) -> str:
        """End the text, unless it ended already; return what was held back."""
        if self.finish is None:
            self.finish = reason
        shown = len(self.text)
        self._feed(self._decoder.flush())
        if self._divider is not None and not self.stop:
            self._add_parts(self._divider.finish())
        self.text += self._stops.flush()
        return self.text[shown:]

    def _add_one(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        if token_id in self._stop_ids:
            self.end(FinishReason.STOP)
            return
        self._feed(self._decoder.feed((token_id,)))
        if self.finish is None and len(self.token_ids) >= self._max_new_tokens:
            self.end(FinishReason.LENGTH)

    def _feed(self, text: str) -> None:
        self._add_parts([(text, True)] if self._divider is None else self._divider.feed(text))

    def _add_parts(self, parts: Sequence[tuple[str, bool]]) -> None:
        """Add texts, and stop at a stop string in those in which it counts."""
        for text, may_stop in parts:
            if not may_stop:
                self.text += self._stops.flush() + text
                continue
            certain, is_stopped = self._stops.feed(text)
            self.text += certain
            if is_stopped:
                self.finish = FinishReason.STOP
                return


class StopStrings:
    """Passes text through until a stop string is complete; the stop string itself is not passed.

    The stop string that is complete first counts; of those that are complete at the same character, the longest. This
    rule depends only on the text, so the text stops at the same character however many tokens a round accepts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""  # the stop string that was found, which is never empty

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is certainly before any stop string, and whether one was found.

        Text that may be the start of a stop string is held back. After a stop, no more text is returned.
        """
        if self.found:
            return "", True
        window = self._held + text
        place = self._find(window)
        if place is not None:
            end, start = place
            self._held = ""
            self.found = window[start:end]
            return window[:start], True
        num_certain = len(window) - num_held(window, self._stops)
        self._held = window[num_certain:]
        return window[:num_certain], False

    def flush(self) -> str:
        """The text that was held back, at the end of the stream."""
        held = self._held
        self._held = ""
        return held

    def _find(self, window: str) -> tuple[int, int] | None:
        """Where the stop string that is complete first ends and begins.

        A match cannot begin before the held text: its beginning would have been held too.
        """
        found = [(start + len(stop), start) for stop in self._stops if (start := window.find(stop)) >= 0]
        return min(found) if found else None


class IncrementalDecoder:
    """Decodes ids piece by piece: the pieces and `flush` together are `decode` of all ids, without an incomplete last
    character.

    A piece is the text that the new tokens add when they are decoded together with the last emitted ones, so that a
    decoder that drops the text's leading space drops it once. A tail that later ids may still change is held back: an
    unfinished UTF-8 sequence, which decodes to U+FFFD, and a run of byte-fallback tokens, which decodes either as a
    whole or, if it is not UTF-8, to one U+FFFD each. A long tail of U+FFFD is decoded again only when its length has
    doubled, so the work per token is constant on average for any text.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Mapping[int, str] = MappingProxyType({})) -> None:
        """Begin a text.

        Args:
            shown: special tokens whose texts are part of the text.
        """
        self._tokenizer = tokenizer
        self._shown = shown
        self._context: list[int] = []
        self._pending: list[int] = []
        self._next_look = 1

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that is certain with these ids."""
        return "".join([self._feed_one(id_) for id_ in token_ids])

    def flush(self) -> str:
        """The text still held back, once no more ids follow.

        A U+FFFD in it was written by the model, or stands for bytes that no further ids could complete.
        """
        num_unfinished = num_unfinished_bytes(b"".join(map(self._tokenizer.bytes_of, self._pending)))
        if num_unfinished and self._tokenizer.is_byte(self._pending[-1]):
            del self._pending[-num_unfinished:]
            num_unfinished = 0
        text = self._pending_text()
        self._advance()
        return text.removesuffix(REPLACEMENT) if num_unfinished else text

    def _feed_one(self, id_: int) -> str:
        if id_ in self._shown:
            return self.flush() + self._shown[id_]
        if self._tokenizer.is_silent(id_):
            return ""
        self._pending.append(id_)
        if self._tokenizer.is_byte(id_) or len(self._pending) < self._next_look:
            return ""
        text = self._pending_text()
        if not text or text.endswith(REPLACEMENT):
            num_pending = len(self._pending)
            self._next_look = num_pending + 1 if num_pending < MAX_EAGER_TOKENS else 2 * num_pending
            return ""
        self._advance()
        return text

    def _pending_text(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._pending)[len(before) :]

    def _advance(self) -> None:
        self._context = self._pending
        self._pending = []
        self._next_look = 1


def num_unfinished_bytes(text: bytes) -> int:
    """Number of bytes at the end of a UTF-8 text that begin a character without completing it."""
    found = UNFINISHED.search(text)
    return 0 if found is None else len(found[0])
