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
from forerun.server.protocols.generation_request import GenerationRequest
from forerun.server.routes.answering import AnswerHook
from forerun.server.routes.engine_calls import with_own_seed
from forerun.server.work.engine_call import EngineCall
from forerun.server.work.job import Event, Mark, ReadProgress

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
    match event.body:
        case DecodeStep() as step:
            return SentStep(event.index, step.token_ids, len(step.text))
        case Generation():
            return SentEnd(event.index)
        case ApiError():
            return Mark.OVER
        case ReadProgress():
            return Mark.PING
        case Mark() as mark:
            return mark


class ContinuedAnswer(AnswerHook):
    """Records what is sent of an answer, so that another replica can continue it, and continues one that was begun.

    Args:
        max_s, process: see `AnswerHook`.
    """

    def __init__(self, continuing: Continuing, *, max_s: float, process: str) -> None:
        super().__init__(
            key=continuing.key, created_s=continuing.created_s, max_s=max_s, process=process,
            is_admitted=len(continuing.sent) > 0,
        )  # fmt: skip
        self._continuing = continuing
        self._num_again = len(continuing.sent)  # events that were sent already
        self._records: list[Sent] = []

    def prepare(
        self, request: GenerationRequest, calls: list[EngineCall]
    ) -> tuple[GenerationRequest, list[EngineCall]]:
        """The sent part of each text is its prediction, so that it is soon written again.

        The answer does not count it as a prediction of the client. A random seed is the same on every replica, and
        another one for every text.
        """
        sent_ids = self._continuing.sent_ids()
        prepared: list[EngineCall] = []
        for index, call in enumerate(calls):
            prompt = replace(call.prompt, prediction=sent_ids.get(index) or call.prompt.prediction)
            params = call.params
            if params.seed is None:
                params = with_own_seed(params, self._continuing.seed, index)
            prepared.append(replace(call, prompt=prompt, params=params))
        return replace(request, prediction="") if self._continuing.sent else request, prepared

    def events(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """Those that were sent come again, in the same pieces."""
        return SameText(self._continuing.sent).events(events)

    def sent(self, event: Event, written: bytes) -> bytes:
        """Nothing for an event that another replica has sent."""
        is_end = event.body is Mark.OVER or isinstance(event.body, ApiError)
        if self._num_again and not is_end:
            self._num_again -= 1
            return b""
        self._records.append(sent_of(event))
        return written

    def take_records(self) -> Sequence[Sent]:
        """The records of the events that were sent since the last call."""
        records = self._records
        self._records = []
        return records


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
            elif event.body is not Mark.PING and not isinstance(event.body, ReadProgress):
                for given in self._add(event):
                    yield given
                    if isinstance(given.body, ApiError):
                        return

    def _add(self, event: Event) -> Iterator[Event]:
        index = event.index
        match event.body:
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
            yield Event(index, OtherTextError())  # it is shorter
        if not self._sent and self._rest is not None:
            yield Event(index, self._rest)
            self._rest = None
        if not self._sent and self._end is not None:
            yield self._end
            self._end = None

    def _next(self, index: int) -> Event | None:
        """The next event that was sent, once its text is written again; None before."""
        match self._sent[0]:
            case Mark():
                return Event(index, Mark.PING)
            case SentEnd():
                ended = self._end
                self._end = None
                return ended
            case SentStep(token_ids=ids, num_characters=num) if self._rest is not None:
                rest = self._rest
                if len(rest.token_ids) < len(ids) or len(rest.text) < num:
                    return None
                if rest.token_ids[: len(ids)] != ids:
                    return Event(index, OtherTextError())
                step, self._rest = divided(rest, len(ids), num)
                return Event(index, step)
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
