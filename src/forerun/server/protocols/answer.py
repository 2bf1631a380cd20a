"""An answer while it is written: its texts, their parts, and its reported numbers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from string import ascii_letters, digits
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from forerun.core.steps import DecodeStep, FinishReason, Generation, PrefillStep, StepStats
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.forerun_key import RoundDetails
from forerun.server.protocols.generation_request import GenerationRequest
from forerun.server.protocols.logprobs import PromptLogprobs, TokenEntry, TokenLogprobs
from forerun.server.protocols.sse import Body
from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent, Reasoning
from forerun.text.tokenizer import Tokenizer


class EventParser(Protocol):
    """Turns an answer's text into its parts; see `forerun.text.output.parser`."""

    def feed(self, text: str) -> list[OutputEvent]: ...

    def finish(self) -> list[OutputEvent]: ...


MakeId: TypeAlias = Callable[[int], str]  # makes an id of this many letters and digits


def id_maker(key: str) -> MakeId:
    """Makes ids that look random and are computed from a key."""
    random = Random(key)
    return lambda num: "".join(random.choices(ascii_letters + digits, k=num))


class PlainParser:
    """A text without parts."""

    def __init__(self, make_id: MakeId) -> None:
        """Make a parser, which needs no ids."""

    def feed(self, text: str) -> list[OutputEvent]:
        return [Content(text)]

    def finish(self) -> list[OutputEvent]:
        return []


@dataclass(frozen=True, slots=True)
class Passage:
    """Reasoning or content between two calls, as far as it is written."""

    is_reasoning: bool
    pieces: list[str]

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(slots=True)
class Call:
    """A tool call, as far as it is written."""

    id: str
    name: str
    pieces: list[str]
    is_complete: bool = False

    @property
    def arguments(self) -> str:
        """JSON text of an object if the call is complete."""
        return "".join(self.pieces)


Part: TypeAlias = Passage | Call


@dataclass(frozen=True, slots=True)
class ParsedRound:
    """A round of a text, parsed.

    Args:
        events: the content, reasoning and calls that it adds.
        logprobs: of the round's tokens, if requested.
        details: of the round, if requested.
    """

    events: Sequence[OutputEvent]
    logprobs: Sequence[TokenEntry] = ()
    details: dict[str, Any] | None = None


class AnswerChoice:
    """One of an answer's texts.

    Args:
        echo: the prompt, if the text begins with it.
        first_prompt_id: the prompt's first token.
    """

    def __init__(
        self, tokenizer: Tokenizer, parser: EventParser, *, echo: str, has_details: bool, first_prompt_id: int = 0
    ) -> None:
        self.echo = echo
        self._tokenizer = tokenizer
        self._first_prompt_id = first_prompt_id
        self._parser = parser
        self._details = RoundDetails(tokenizer) if has_details else None
        self._logprobs = TokenLogprobs(tokenizer, offset=len(echo))
        self.parts: list[Part] = []  # in the order in which they were written
        self.calls: list[Call] = []  # the calls among the parts
        self.logprobs: list[TokenEntry] = []
        self.num_tokens = self.num_reasoning_tokens = 0  # the latter in rounds that wrote only reasoning
        self.last: StepStats | None = None
        self.finish: FinishReason | None = None
        self.stop = ""  # the stop text that ended it
        self.is_cut = True  # by a limit; False if the model or a stop text ended it
        self.result: Generation | None = None

    def parse(self, step: DecodeStep) -> ParsedRound:
        """Add a round, and return what the parser finds in it."""
        self.last = step.stats
        self.num_tokens += len(step.token_ids)
        events = self._parser.feed(step.text) if step.text else []
        if step.finish is not None:
            self.finish = step.finish
            self.stop = step.stop
            self.is_cut = step.finish is not FinishReason.STOP
            events = [*events, *self._parser.finish()]
        for event in events:
            self._add(event)
        if self.finish is FinishReason.STOP and not self.stop and not self._has_whole_calls:
            self.finish = FinishReason.LENGTH  # tells clients not to make the call
        self.num_reasoning_tokens += len(step.token_ids) if is_thinking(events, self.parts) else 0
        logprobs = self._logprobs.of(step)
        self.logprobs += logprobs
        return ParsedRound(events, logprobs, None if self._details is None else self._details.of(step))

    def end(self, result: Generation) -> None:
        """Add the result; a text of no tokens has no rounds."""
        self.result = result
        self.finish = self.finish or FinishReason.LENGTH

    @property
    def prompt_logprobs(self) -> PromptLogprobs:
        """Those of the prompt's tokens, once the text is complete."""
        items = () if self.result is None else self.result.prompt_logprobs
        return PromptLogprobs(self._tokenizer, self._first_prompt_id, items)

    def _add(self, event: OutputEvent) -> None:
        match event:
            case Reasoning(text) | Content(text):
                is_reasoning = isinstance(event, Reasoning)
                last = self.parts[-1] if self.parts else None
                if isinstance(last, Passage) and last.is_reasoning == is_reasoning:
                    last.pieces.append(text)
                else:
                    self.parts.append(Passage(is_reasoning, [text]))
            case CallStarted(_, id_, name):
                self.calls.append(Call(id_, name, []))
                self.parts.append(self.calls[-1])
            case CallArguments(index, text):
                self.calls[index].pieces.append(text)
            case CallEnded(index):
                self.calls[index].is_complete = True

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Passage) and part.is_reasoning)

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, Passage) and not part.is_reasoning)

    @property
    def ends_with_calls(self) -> bool:
        """True if the model ended the text, it calls tools, and all calls are complete."""
        return self.finish is FinishReason.STOP and bool(self.calls) and self._has_whole_calls

    @property
    def _has_whole_calls(self) -> bool:
        return all(call.is_complete for call in self.calls)


def is_thinking(events: Sequence[OutputEvent], parts: Sequence[Part]) -> bool:
    """True if a round wrote only reasoning, which may all be held back."""
    last = parts[-1] if parts else None
    only_reasons = all(isinstance(event, Reasoning) for event in events)
    return only_reasons and isinstance(last, Passage) and last.is_reasoning


@dataclass(slots=True, kw_only=True)
class Answer:
    """A request's answer.

    Args:
        model: the model's name for the client.
        num_prompt_tokens: tokens of all prompts.
        drafter: name of the drafter.
        process: the name of the process that answers; empty if there is only one.
        prompt_change: where the prompt differs from an earlier one of the conversation; empty if it only continues it.
        key: part of the answer's id; all other ids are computed from it.
        created_s: in seconds since 1970.
    """

    request: GenerationRequest
    request_id: str
    model: str
    choices: list[AnswerChoice]
    num_prompt_tokens: int
    drafter: str
    process: str = ""
    prompt_change: Body = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid4().hex)
    created_s: int = field(default_factory=lambda: int(time.time()))

    @property
    def results(self) -> list[Generation]:
        """The results of the texts that are complete."""
        return [choice.result for choice in self.choices if choice.result is not None]

    def prompt_logprobs(self, index: int) -> PromptLogprobs:
        """Those of the prompt of a text; they are read with the first text of each prompt."""
        return self.choices[index - index % self.request.num_choices].prompt_logprobs

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were not computed again; 0 until the first text is complete."""
        return sum(result.stats.num_reused_tokens for result in self.results[:: self.request.num_choices])

    @property
    def num_new_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)


def prompt_progress(step: PrefillStep, seconds: float) -> Body:
    """How much of a prompt is read, in llama-server's form: the key `prompt_progress` of an event."""
    is_read = step.num_read == step.num_tokens  # up to the last token, which the first round reads
    processed = step.num_read + is_read
    counts = {"total": step.num_tokens + 1, "cache": step.num_reused, "processed": processed}
    return {"prompt_progress": {**counts, "time_ms": round(seconds * 1e3)}}


class AnswerWriter(Protocol):
    """Writes an answer in the form of a protocol, whole or as events."""

    def start(self) -> bytes:
        """The events before the first text."""

    def add(self, index: int, parsed: ParsedRound) -> bytes:
        """The events of a round of a text; may be empty."""

    def end(self, index: int) -> bytes:
        """The events at the end of a text."""

    def close(self) -> bytes:
        """The events after the last text."""

    def wait(self, progress: Body | None = None) -> bytes:
        """The bytes that keep a waiting connection open.

        Args:
            progress: `prompt_progress`, for a client that asked for it.
        """

    def fail(self, error: ApiError) -> bytes:
        """The event of an error, which ends the stream."""

    def whole(self) -> Body:
        """The whole answer as an object."""


MakeWriter: TypeAlias = Callable[[Answer], AnswerWriter]
