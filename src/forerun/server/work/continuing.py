"""Continues a stream whose replica was lost: the text is written again, and only the part that was not sent is sent.

A text is a function of its prompt and seed, so another replica writes the same one. Its rounds differ, so the part that
was sent is cut into the same pieces again: then everything that depends on pieces, such as numbers of events, continues
correctly. Random ids are computed from the same key.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from forerun.core.steps import DecodeStep, Generation
from forerun.server.protocols.errors import ApiError
from forerun.server.work.job import Event, Mark

CONTINUING: Final = "continuing"  # key of a request's state
MAX_S: Final = "max_s"  # another key: seconds that the request has left
SENT: Final = "forerun.sent"  # key of an ASGI message: the records of the events in its body


@dataclass(frozen=True, slots=True)
class SentStep:
    """A round of one of an answer's texts: its tokens, and how many characters they add to the text."""

    index: int
    token_ids: tuple[int, ...]
    num_characters: int


@dataclass(frozen=True, slots=True)
class SentEnd:
    """The end of one of an answer's texts."""

    index: int


Sent: TypeAlias = SentStep | SentEnd | Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuing:
    """The values that make an answer the same on every replica, and the record of its sent part.

    Args:
        key: for the answer's ids.
        created_s: the answer's time, in seconds since 1970.
        seed: for a request without a seed.
        sent: the sent events in order; `Mark.OVER` at the end of the answer.
    """

    key: str
    created_s: int
    seed: int
    sent: tuple[Sent, ...] = ()

    def sent_ids(self) -> Mapping[int, Sequence[int]]:
        """The tokens that were sent of each text."""
        found: dict[int, list[int]] = {}
        for item in self.sent:
            if isinstance(item, SentStep):
                found.setdefault(item.index, []).extend(item.token_ids)
        return found


def sent_of(event: Event) -> Sent:
    """The record of an event that was sent."""
    match event:
        case (index, DecodeStep() as step):
            return SentStep(index, step.token_ids, len(step.text))
        case (index, Generation()):
            return SentEnd(index)
        case (_, ApiError()):
            return Mark.OVER
    return Mark.PING


class OtherTextError(ApiError):
    """The text differs from the one that was begun, as it may at near-ties on machines of different kinds."""

    def __init__(self) -> None:
        message = "The replica of this answer was lost, and another one writes a different text: try again."
        super().__init__(503, message, code="replica_lost", retry_after_s=1)


class SameText:
    """The events of a text that is written again, beginning with those that were sent, in the same pieces.

    Args:
        sent: the records of the events that were sent.
    """

    def __init__(self, sent: Sequence[Sent]) -> None:
        self._sent = deque(sent)
        self._rest: DecodeStep | None = None  # the part that is written but was not returned yet
        self._end: Event | None = None

    async def events(self, written: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """The events, given those of the job that writes the text."""
        async for event in written:
            if not self._sent:
                yield event
            elif event[1] is not Mark.PING:
                for given in self._add(event):
                    yield given
                    if isinstance(given[1], ApiError):
                        return

    def _add(self, event: Event) -> Iterator[Event]:
        index, happening = event
        match happening:
            case ApiError():
                yield event
            case DecodeStep() as step:
                self._rest = step if self._rest is None else joined(self._rest, step)
            case Generation():
                self._end = event
        while self._sent and (given := self._next(index)) is not None:
            self._sent.popleft()
            yield given
        if self._end is not None and isinstance(self._sent[0] if self._sent else None, SentStep):
            yield index, OtherTextError()  # it is shorter
        if not self._sent and self._rest is not None:
            yield index, self._rest
            self._rest = None
        if not self._sent and self._end is not None:
            yield self._end
            self._end = None

    def _next(self, index: int) -> Event | None:
        """The next event that was sent, once its text is written again; None before."""
        match self._sent[0]:
            case Mark():
                return index, Mark.PING
            case SentEnd():
                ended = self._end
                self._end = None
                return ended
            case SentStep(token_ids=ids, num_characters=num) if self._rest is not None:
                rest = self._rest
                if len(rest.token_ids) < len(ids) or len(rest.text) < num:
                    return None
                if rest.token_ids[: len(ids)] != ids:
                    return index, OtherTextError()
                step, self._rest = divided(rest, len(ids), num)
                return index, step
        return None


def joined(first: DecodeStep, second: DecodeStep) -> DecodeStep:
    """Two rounds as one, with the numbers of the second."""
    return replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        text=first.text + second.text,
        logprobs=first.logprobs + second.logprobs,
    )


def divided(step: DecodeStep, num_tokens: int, num_characters: int) -> tuple[DecodeStep, DecodeStep | None]:
    """Divide a round into two; the first has this many tokens and characters. None if nothing is left."""
    ids = step.token_ids
    text = step.text
    logprobs = step.logprobs
    if (num_tokens, num_characters) == (len(ids), len(text)):
        return step, None
    first = replace(
        step,
        token_ids=ids[:num_tokens],
        text=text[:num_characters],
        logprobs=logprobs[:num_tokens],
        finish=None,
        stop="",
    )
    rest = replace(step, token_ids=ids[num_tokens:], text=text[num_characters:], logprobs=logprobs[num_tokens:])
    return first, rest
