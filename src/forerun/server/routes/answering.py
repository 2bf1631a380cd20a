"""Turns a job's events into an answer: one JSON object or a stream of events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from time import time
from uuid import uuid4

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from forerun.core.steps import DecodeStep, Generation
from forerun.server.guard.connection import ABORT
from forerun.server.protocols.answer import Answer, AnswerChoice, MakeWriter, id_maker
from forerun.server.protocols.asked import Asked
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.unsupported import ignored_header
from forerun.server.protocols.usage import FINISH
from forerun.server.routes.orders import orders_for
from forerun.server.routes.streaming import ClientWatch, EventStream, Note
from forerun.server.routes.strict_route import owner_of, service_of
from forerun.server.work.chats import ReadPrompts
from forerun.server.work.continuing import CONTINUING, MAX_S, SENT, Continuing, SameText, Sent, sent_of
from forerun.server.work.job import Event, Job, Mark

GONE = 499  # nginx's status for a client that has disconnected; nobody reads it


class Answering:
    """One request's answer.

    Raises:
        ApiError: a setting of the request is invalid.
    """

    def __init__(self, request: Request, asked: Asked, read: ReadPrompts, make_writer: MakeWriter) -> None:
        self._request = request
        self._asked = asked
        self._service = service_of(request)
        self._continuing: Continuing | None = request.scope["state"].get(CONTINUING)
        self._num_again = len(self._continuing.sent) if self._continuing else 0  # events that were sent already
        self._sent: list[Sent] = []  # the records for the next message
        self._has_failed = False
        self._orders = orders_for(request, asked, read, self._continuing)
        self._headers = ignored_header([*asked.ignored, *read.ignored])
        tokenizer = self._service.engine.tokenizer
        details = asked.shows_details
        echoes = [echo for echo in read.echoes or [""] * len(read.ids) for _ in range(asked.num_choices)]
        key = uuid4().hex if self._continuing is None else self._continuing.key
        self._answer = Answer(
            key=key,
            created_s=int(time()) if self._continuing is None else self._continuing.created_s,
            asked=replace(asked, prediction="") if goes_on(request) else asked,  # the sent part is predicted instead
            request_id=request.scope["state"]["request_id"],
            model=asked.model or self._service.model_name,
            choices=[
                AnswerChoice(tokenizer, read.make_parser(id_maker(f"{key} {index}")), echo=echo, has_details=details)
                for index, echo in enumerate(echoes)
            ],
            num_prompt_tokens=sum(map(len, read.ids)),
            drafter=asked.drafter or self._service.drafter_name,
            replica=request.scope["state"].get("replica", ""),
        )
        self._writer = make_writer(self._answer)
        self._label = f"{request.scope['path']} (request {self._answer.request_id})"

    async def respond(self) -> Response:
        """The response. A stream begins with its first event, so an error before that has its own HTTP status."""
        abort = self._request.scope["state"].get(ABORT, job_alone) if self._asked.streams else None
        job = self._service.submit(
            self._orders,
            owner=owner_of(self._request),
            on_slow_reader=abort,
            is_admitted=goes_on(self._request),
            label=self._label,
            max_s=self._request.scope["state"].get(MAX_S),
        )
        watch = ClientWatch(self._request.receive, job)
        try:
            if self._asked.streams:
                events = self._pinged(job)
                if self._continuing is not None:
                    events = SameText(self._continuing.sent).events(events)
                first = await self._first_of(events)
                return EventStream(self._stream(job, first, events), watch, self._headers, self._note)
            answer = await self._whole(job)
        except BaseException:
            watch.end()
            raise
        watch.end()
        return answer

    async def _whole(self, job: Job) -> Response:
        async for index, happening in job.events():
            match happening:
                case ApiError():
                    raise happening
                case DecodeStep():
                    self._answer.choices[index].take(happening)
                case Generation():
                    self._finish(index, happening)
        if job.early_end is not None:
            return Response(status_code=GONE)
        return JSONResponse(self._writer.whole(), headers=self._headers)

    async def _pinged(self, job: Job) -> AsyncIterator[Event]:
        """The job's events with regular pings."""
        pings = asyncio.create_task(ping(job, self._service.config.ping_s))
        try:
            async for event in job.events():
                yield event
        finally:
            pings.cancel()

    async def _first_of(self, events: AsyncIterator[Event]) -> Event | None:
        """The first event to send; None if the job ended without one. Raises the job's error."""
        async for event in events:
            if isinstance(event[1], ApiError):
                raise event[1]
            return event
        return None

    async def _stream(self, job: Job, first: Event | None, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        if first is None:
            return
        pieces = self._unsent(first, self._writer.begin() + self._event(first))
        if pieces:
            yield pieces
        pieces = b""  # events that arrived together are sent together
        async for event in events:
            pieces += self._unsent(event, self._event(event))
            if pieces and not job.has_unread:
                yield pieces
                pieces = b""
        if job.early_end is None and not self._has_failed:
            pieces += self._writer.close()
            self._sent.append(Mark.OVER)
        if pieces:
            yield pieces

    def _unsent(self, event: Event, written: bytes) -> bytes:
        """The bytes of an event, unless another replica sent it before this one continued the answer."""
        if self._num_again and not isinstance(event[1], ApiError):
            self._num_again -= 1
            return b""
        self._sent.append(sent_of(event))
        return written

    def _note(self) -> Note:
        """The record of the next message, with which a front can let another replica continue the answer."""
        sent = self._sent
        self._sent = []
        return {} if self._continuing is None else {SENT: sent}

    def _event(self, event: Event) -> bytes:
        """A job's event as bytes to send; may be empty."""
        index, happening = event
        match happening:
            case DecodeStep():
                return self._writer.add(index, self._answer.choices[index].take(happening))
            case Generation():
                self._finish(index, happening)
                return self._writer.end(index)
            case ApiError():
                self._has_failed = True
                return self._writer.fail(happening)
            case Mark.PING:
                return self._writer.wait()
        return b""

    def _finish(self, index: int, result: Generation) -> None:
        choice = self._answer.choices[index]
        choice.end(result)
        self._service.metrics.end("stop" if choice.finish is None else FINISH[choice.finish])


def goes_on(request: Request) -> bool:
    """Whether a part of the answer was sent by a replica that is lost."""
    continuing: Continuing | None = request.scope["state"].get(CONTINUING)
    return continuing is not None and bool(continuing.sent)


async def ping(job: Job, every_s: float) -> None:
    """Send pings that keep the connection open."""
    while True:
        await asyncio.sleep(every_s)
        job.put(0, Mark.PING)


def job_alone() -> None:
    """Do nothing. Used under another server than ours, where a connection cannot be closed; the job still ends."""
