"""Turns a job's events into an answer: one JSON object or a stream of events."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from fastapi import Request, Response
from fastapi.responses import JSONResponse

import forerun
from forerun.core.steps import DecodeStep, Generation, StepStats
from forerun.server.guard.connection import ABORT
from forerun.server.protocols.usage import FINISH, Body, counted, timings, usage
from forerun.server.protocols.details import RoundDetails
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.events import CHAT, DONE, PING, TEXT, EventWriter, error_event
from forerun.server.protocols.logprobs import LogprobWriter
from forerun.server.protocols.fields import ChatRequest, CompletionRequest
from forerun.server.protocols.thinking import ThinkingSplit
from forerun.server.protocols.unsupported import ignored_header
from forerun.server.routes.streaming import ClientWatch, EventStream
from forerun.server.routes.strict_route import owner_of, service_of
from forerun.server.work.job import Event, Job, Mark, Order

GONE = 499  # nginx's status for a client that has disconnected; nobody reads it


class GrowingText:
    """One text while it is generated.

    Args:
        echo: the echoed prompt before it.
        rendered: the prompt after the chat template, for a model with reasoning; else None.
    """

    def __init__(
        self, *, echo: str, rendered: str | None, details: RoundDetails | None, logprobs: LogprobWriter
    ) -> None:
        self._split = None if rendered is None else ThinkingSplit(rendered)
        self._details, self.logprobs = details, logprobs
        self.content, self.thought = [echo], [""]
        self.rounds: list[StepStats] = []
        self.num_tokens = 0
        self.finish: str | None = None
        self.result: Generation | None = None

    def take(self, step: DecodeStep) -> tuple[dict[str, str], dict[str, Any]]:
        """Add a round; returns what it adds to the message, and further keys for the event."""
        self.rounds.append(step.stats)
        self.num_tokens += len(step.token_ids)
        if step.finish is not None:
            self.finish = FINISH[step.finish]
        thought, content = ("", step.text) if self._split is None else self._split.feed(step.text)
        if self._split is not None and step.finish is not None:
            last = self._split.flush()
            thought, content = thought + last[0], content + last[1]
        self.content.append(content)
        self.thought.append(thought)
        added = {name: text for name, text in (("reasoning_content", thought), ("content", content)) if text}
        return added, {} if self._details is None else {"forerun": self._details.of(step)}


class Answering:
    """One request's answer.

    Args:
        orders: the texts to generate; those of one prompt are adjacent.
        rendered: the prompt after the chat template, for a model with reasoning; else None.
        echoes: the echoed prompt before each text.
    """

    def __init__(
        self,
        request: Request,
        asked: ChatRequest | CompletionRequest,
        orders: list[Order],
        *,
        ignored: dict[str, Any],
        rendered: str | None = None,
        echoes: list[str] | None = None,
    ) -> None:
        self._request, self._asked, self._orders = request, asked, orders
        self._service = service_of(request)
        self._headers = ignored_header(ignored)
        self._is_chat = isinstance(asked, ChatRequest)
        self._choices = [self._choice(echo, rendered) for echo in (echoes or [""] * len(orders))]
        self._about = {
            "id": ("chatcmpl-" if self._is_chat else "cmpl-") + uuid4().hex,
            "created": int(time.time()),
            "model": self._service.model_name,
            "system_fingerprint": f"forerun-{forerun.__version__}",
        }

    def _choice(self, echo: str, rendered: str | None) -> GrowingText:
        tokenizer = self._service.engine.tokenizer
        return GrowingText(
            echo=echo,
            rendered=rendered,
            details=RoundDetails(tokenizer) if self._asked.options.details else None,
            logprobs=LogprobWriter(tokenizer, is_chat=self._is_chat, offset=len(echo)),
        )

    async def respond(self) -> Response:
        """The response. A stream begins with its first event, so an error before that has its own HTTP status."""
        abort = self._request.scope["state"].get(ABORT, job_alone) if self._asked.stream else None
        job = self._service.submit(self._orders, owner=owner_of(self._request), on_slow_reader=abort)
        watch = ClientWatch(self._request.receive, job)
        try:
            if self._asked.stream:
                events = self._pinged(job)
                first = await self._first_of(events)
                return EventStream(self._stream(job, first, events), watch, self._headers)
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
                    self._choices[index].take(happening)
                    self._choices[index].logprobs.of(happening)
                case Generation():
                    self._finish(index, happening)
        if job.early_end is not None:
            return Response(status_code=GONE)
        body = {
            "object": "chat.completion" if self._is_chat else "text_completion",
            **self._about,
            "choices": [self._choice_body(index) for index in range(len(self._choices))],
            **self._numbers(),
        }
        return JSONResponse(body, headers=self._headers)

    def _choice_body(self, index: int) -> Body:
        choice = self._choices[index]
        text, thought = "".join(choice.content), "".join(choice.thought)
        said: Body = {"text": text}
        if self._is_chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
            if thought:
                said["message"]["reasoning_content"] = thought
        return {"index": index, **said, "logprobs": choice.logprobs.whole(), "finish_reason": choice.finish}

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
            if event[1] is Mark.PING or isinstance(event[1], DecodeStep):
                return event
        return None

    async def _stream(self, job: Job, first: Event | None, events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        writer = EventWriter(CHAT if self._is_chat else TEXT, self._about)
        if first is None:
            return
        yield self._opening(writer) + self._event(writer, job, first)
        pieces = b""  # events that arrived together are sent together
        async for event in events:
            pieces += self._event(writer, job, event)
            if pieces and not job.has_unread:
                yield pieces
                pieces = b""
        if job.early_end is None and job.error is None:
            pieces += writer.event([], **self._numbers()) if self._asked.says_usage else b""
            pieces += DONE
        if pieces:
            yield pieces

    def _opening(self, writer: EventWriter) -> bytes:
        """The first event of every text, with the role or the echoed prompt."""
        roots = self._usage_so_far()
        if self._is_chat:
            begin = {"role": "assistant", "content": ""}
            return b"".join(writer.piece(index, begin, **roots) for index in range(len(self._choices)))
        echoed = [(index, choice.content[0]) for index, choice in enumerate(self._choices)]
        return b"".join(writer.piece(index, {"text": text}, **roots) for index, text in echoed if text)

    def _event(self, writer: EventWriter, job: Job, event: Event) -> bytes:
        """A job's event as bytes to send; may be empty."""
        index, happening = event
        match happening:
            case DecodeStep():
                return self._round(writer, index, happening)
            case Generation():
                self._finish(index, happening)
                return self._ending(writer, index)
            case ApiError():
                return error_event(happening, self._request.scope["state"]["request_id"])
            case Mark.PING:
                return PING
        return b""

    def _round(self, writer: EventWriter, index: int, step: DecodeStep) -> bytes:
        choice = self._choices[index]
        added, roots = choice.take(step)
        logprobs = choice.logprobs.of(step)
        if not self._is_chat:
            added = {"text": added["content"]} if added else {}
        if not (added or roots or logprobs):
            return b""
        return writer.piece(index, added, logprobs=logprobs, **roots, **self._usage_so_far())

    def _ending(self, writer: EventWriter, index: int) -> bytes:
        """The last event of a text; that of the last text has the timings, as in llama-server."""
        is_last = index == len(self._choices) - 1 and not self._asked.says_usage
        roots = {"timings": self._numbers()["timings"]} if is_last else self._usage_so_far()
        return writer.piece(index, {}, self._choices[index].finish, **roots)

    def _usage_so_far(self) -> dict[str, Any]:
        options = self._asked.stream_options
        if options is None or not options.include_usage:
            return {}
        if not options.continuous_usage_stats:
            return {"usage": None}
        num_new = sum(choice.num_tokens for choice in self._choices)
        return {
            "usage": counted(sum(len(order.prompt_ids) for order in self._orders[:: self._asked.num_choices]), num_new)
        }

    def _finish(self, index: int, result: Generation) -> None:
        choice = self._choices[index]
        choice.result = result
        self._service.metrics.end(choice.finish or "stop")

    def _numbers(self) -> dict[str, Any]:
        """Usage of all texts and the timings of the last one."""
        results = [choice.result for choice in self._choices if choice.result is not None]
        rounds = self._choices[-1].rounds
        drafter = self._asked.options.drafter or self._service.drafter_name
        last = rounds[-1] if rounds else None
        return {
            "usage": usage(results, drafter, last, num_choices=self._asked.num_choices),
            "timings": timings(results[-1].stats),
        }


async def ping(job: Job, every_s: float) -> None:
    """Send pings that keep the connection open."""
    while True:
        await asyncio.sleep(every_s)
        job.put(0, Mark.PING)


def job_alone() -> None:
    """Do nothing. Used under another server than ours, where a connection cannot be closed; the job still ends."""
