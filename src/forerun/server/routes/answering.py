"""Answers a request from the events of its job: with one JSON object, or with a stream of events."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Final, TypeAlias
from uuid import uuid4

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from forerun.core.steps import DecodeStep, Generation
from forerun.server.protocols.answer import Answer, AnswerChoice, MakeWriter, id_maker, prompt_progress
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.generation_request import GenerationRequest
from forerun.server.protocols.openai_writer import FINISH
from forerun.server.protocols.unsupported import ignored_header
from forerun.server.request_state import state_of
from forerun.server.routes.engine_calls import engine_calls
from forerun.server.work.engine_call import EngineCall, Prompt
from forerun.server.work.job import EarlyEnd, Event, Job, Mark, ReadProgress
from forerun.server.work.prompt_history import EarlierText, PromptChange
from forerun.server.work.service import Service

logger = logging.getLogger(__name__)

GONE: Final = 499  # nginx's status for a client that has disconnected; nobody reads it
HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # makes nginx pass events on at once
}


@dataclass(kw_only=True)
class AnswerHook:
    """What a wrapper of the server may change about an answer; this one changes nothing.

    Args:
        key: part of the answer's id; all other ids are computed from it.
        created_s: in seconds since 1970.
        max_s: seconds until the last token; None: those of the config.
        is_admitted: the queue accepts the request even if it is full.
        process: the name of the process that answers, if there are several.
    """

    key: str = field(default_factory=lambda: uuid4().hex)
    created_s: int = field(default_factory=lambda: int(time.time()))
    max_s: float | None = None
    is_admitted: bool = False
    process: str = ""

    def prepare(
        self, request: GenerationRequest, calls: list[EngineCall]
    ) -> tuple[GenerationRequest, list[EngineCall]]:
        """The request as the answer's writer sees it, and the calls of the engine."""
        return request, calls

    def events(self, events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        """The events of a stream, given those of its job."""
        return events

    def sent(self, event: Event, written: bytes) -> bytes:
        """The bytes to send for an event of a stream, given those that the protocol's writer made of it."""
        return written


HookFor: TypeAlias = Callable[[Request], AnswerHook]


class Answering:
    """One request's answer.

    Raises:
        ApiError: a setting of the request is invalid.
    """

    def __init__(
        self,
        request: Request,
        wanted: GenerationRequest,
        prompts: Sequence[Prompt],
        service: Service,
        make_writer: MakeWriter,
        hook: AnswerHook,
    ) -> None:
        self._receive = request.receive
        self._state = state_of(request.scope)
        self._service = service
        self._hook = hook
        self._has_failed = False
        self._streams = wanted.streams
        self._headers = ignored_header([*wanted.ignored, *(name for prompt in prompts for name in prompt.ignored)])
        calls = engine_calls(wanted, prompts, service, owner=self._state.owner)
        wanted, self._calls = hook.prepare(wanted, calls)
        self._label = f"{request.scope['path']} (request {self._state.request_id})"
        change = self._compare_with_earlier(prompts[0])
        self._answer = Answer(
            key=hook.key,
            created_s=hook.created_s,
            request=wanted,
            request_id=self._state.request_id,
            model=wanted.model or service.model_name,
            choices=[
                AnswerChoice(
                    service.engine.tokenizer,
                    call.prompt.make_parser(id_maker(f"{hook.key} {index}")),
                    echo=call.prompt.echo,
                    has_details=wanted.shows_details,
                    first_prompt_id=call.prompt.ids[0],
                )
                for index, call in enumerate(self._calls)
            ],
            num_prompt_tokens=sum(len(prompt.ids) for prompt in prompts),
            drafter=wanted.drafter or service.drafter_name,
            process=hook.process,
            prompt_change={} if change is None else asdict(change),
        )
        self._writer = make_writer(self._answer)

    def _compare_with_earlier(self, prompt: Prompt) -> PromptChange | None:
        """Where a conversation's prompt differs from the one before; the log tells it too."""
        self._earlier: EarlierText | None = None
        if not prompt.messages:
            return None
        service = self._service
        self._earlier, change = service.history.told_prompt(self._state.owner, prompt, service.engine.tokenizer)
        if change is not None:
            logger.info("%s: %s", self._label, change)
        return change

    async def respond(self) -> Response:
        """The response. A stream begins with its first event, so an error before that has its own HTTP status."""
        job = self._service.submit(
            self._calls,
            owner=self._state.owner,
            on_slow_reader=self._state.abort if self._streams else None,
            is_admitted=self._hook.is_admitted,
            label=self._label,
            max_s=self._hook.max_s,
        )
        watch = ClientWatch(self._receive, job)
        try:
            if self._streams:
                events = self._hook.events(self._pinged(job))
                first = await self._first_of(events)
                return EventStream(self._stream(job, first, events), watch, self._headers)
            answer = await self._whole(job)
        except BaseException:
            watch.end()
            raise
        watch.end()
        return answer

    async def _whole(self, job: Job) -> Response:
        async for event in job.events():
            match event.body:
                case ApiError():
                    raise event.body
                case DecodeStep():
                    self._answer.choices[event.index].parse(event.body)
                case Generation():
                    self._finish(event.index, event.body)
        if job.early_end is not None:
            return Response(status_code=GONE)
        if self._answer.request.sampling.get("prompt_logprobs") is None:
            return JSONResponse(self._writer.whole(), headers=self._headers)
        # Those of a long prompt take seconds to write.
        return await asyncio.to_thread(lambda: JSONResponse(self._writer.whole(), headers=self._headers))

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
            if isinstance(event.body, ApiError):
                raise event.body
            return event
        return None

    async def _stream(self, job: Job, first: Event | None, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        if first is None:
            return
        pieces = self._hook.sent(first, self._writer.start() + self._written(first))
        if pieces:
            yield pieces
        pieces = b""  # events that arrived together are sent together
        async for event in events:
            pieces += self._hook.sent(event, self._written(event))
            if pieces and not job.has_unread:
                yield pieces
                pieces = b""
        if job.early_end is None and not self._has_failed:
            over = Event(0, Mark.OVER)
            pieces += self._hook.sent(over, self._written(over))
        if pieces:
            yield pieces

    def _written(self, event: Event) -> bytes:
        """An event in the protocol's form; may be empty."""
        index = event.index
        match event.body:
            case ReadProgress(step, seconds):
                return self._writer.wait(prompt_progress(step, seconds))
            case DecodeStep() as step:
                return self._writer.add(index, self._answer.choices[index].parse(step))
            case Generation() as result:
                self._finish(index, result)
                return self._writer.end(index)
            case ApiError() as error:
                self._has_failed = True
                return self._writer.fail(error)
            case Mark.PING:
                return self._writer.wait()
            case Mark.OVER:
                return self._writer.close()

    def _finish(self, index: int, result: Generation) -> None:
        choice = self._answer.choices[index]
        choice.end(result)
        if self._earlier is not None and index == 0:
            self._earlier.token_ids += result.token_ids
        self._service.metrics.end("stop" if choice.finish is None else FINISH[choice.finish])


class ClientWatch:
    """Ends a job when its client disconnects, in any phase of the job."""

    def __init__(self, receive: Receive, job: Job) -> None:
        self._receive = receive
        self._job = job
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stop watching. If the job is still running, it is ended, since nobody reads it any more."""
        self._task.cancel()
        self._job.end(EarlyEnd.DISCONNECTED)

    async def _watch(self) -> None:
        with suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._job.end(EarlyEnd.DISCONNECTED)


class EventStream(Response):
    """A response that sends each event in one piece as soon as it is available.

    Args:
        events: the job's events as bytes.
        watch: ended with this response, which also ends the job.
    """

    def __init__(self, events: AsyncIterator[bytes], watch: ClientWatch, headers: dict[str, str]) -> None:
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._watch.end()


async def ping(job: Job, every_s: float) -> None:
    """Send pings that keep the connection open."""
    while True:
        await asyncio.sleep(every_s)
        job.put(Event(0, Mark.PING))
