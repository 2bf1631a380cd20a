"""Anthropic's messages: POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from forerun.core.steps import FinishReason
from forerun.server.protocols.answer import Answer, AnswerChoice, Call, ParsedRound, Part
from forerun.server.protocols.anthropic_history import messages_of, system_text
from forerun.server.protocols.described import HAS_FORMAT, MESSAGES_CHOICE, MESSAGES_TOOL, items
from forerun.server.protocols.errors import ApiError, PromptTooLongError, invalid
from forerun.server.protocols.fields import (
    Fields,
    Limit,
    Name,
    Object,
    Objects,
    Share,
    StopTexts,
    Temperature,
    TopK,
    first_limit,
    plain_sampling,
    thought_limit,
)
from forerun.server.protocols.generation_request import Chat, GenerationRequest, ToolUse
from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.response_format import format_grammar
from forerun.server.protocols.sse import Body, named_event
from forerun.server.protocols.tools import function_tool, is_name, no_name, tool_use
from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent, Reasoning
from forerun.text.output.json_text import object_of

ERRORS: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip
FIRST_FAILED: Final = 500


class AnthropicMessage(Fields):
    """One message, with content as a text or in blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | Objects | None = None


class MessagesRequest(Fields):
    """POST /v1/messages."""

    model: Name | None = None
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_tokens: Limit | None = None
    system: str | Objects | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    stop_sequences: StopTexts | None = None
    tools: Annotated[Objects, items(MESSAGES_TOOL)] | None = None
    tool_choice: Annotated[Object, WithJsonSchema(MESSAGES_CHOICE)] | None = None
    thinking: Object | None = None
    return_progress: bool | None = None
    output_config: Annotated[Object, WithJsonSchema(HAS_FORMAT)] | None = None
    metadata: Object | None = None


def read(request: MessagesRequest) -> GenerationRequest:
    """Read a request.

    Raises:
        ApiError: a block or a tool cannot be read.
    """
    messages, ignored = messages_of([(message.role, message.content) for message in request.messages])
    system = system_text(request.system or "")
    last = messages[-1] if messages else {}
    use, skipped = tools_of(request)
    output = request.output_config or {}
    thinking = request.thinking or {}
    kind = thinking.get("type")
    effort = output.get("effort")
    shape = output.get("format")
    given = {"temperature": request.temperature, "top_p": request.top_p, "top_k": request.top_k}
    return GenerationRequest(
        prompt=Chat(
            messages=[*([{"role": "system", "content": system}] if system else []), *messages],
            tool_use=use,
            effort=effort if isinstance(effort, str) else None,
            thinks=kind != "disabled" if isinstance(kind, str) else None,
            max_thought_tokens=thought_limit(**{"thinking.budget_tokens": thinking.get("budget_tokens")}),
            continues=last.get("role") == "assistant" and bool(last.get("content")) and "tool_calls" not in last,
        ),
        param="messages",
        model=request.model,
        sampling=plain_sampling(given, stop=request.stop_sequences),
        limit=first_limit(request.max_tokens),
        grammar=format_grammar(shape, "output_config.format"),
        grammar_at="output_config.format.schema",
        streams=bool(request.stream),
        shows_progress=bool(request.return_progress),
        ignored=[*request.others, *skipped, *ignored],
    )


def tools_of(request: MessagesRequest) -> tuple[ToolUse, list[str]]:
    """The tools that the answer may call, and the names of tools of other kinds, which are left out."""
    tools = []
    skipped = []
    for place, tool in enumerate(request.tools or ()):
        if tool.get("type", "custom") in ("custom", None):
            if not is_name(tool.get("name")):
                raise no_name(place)
            tools.append(function_tool(tool["name"], tool.get("description"), tool.get("input_schema")))
        else:
            skipped.append(f"tools.{tool['type']}")
    choice = request.tool_choice or {}
    kind = choice.get("type", "auto")
    is_parallel = choice.get("disable_parallel_tool_use") is not True
    if isinstance(kind, dict):
        raise invalid("tool_choice.type must be auto, any, none or tool.", param="tool_choice")
    return tool_use(tools, choice if kind == "tool" else kind, is_parallel=is_parallel), skipped


class MessagesWriter:
    """Writes messages. In a stream, every block is stopped before the next one starts."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._id = f"msg_{answer.key[:24]}"
        self._num_blocks = 0
        self._open: str | None = None  # the type of the block that is being written

    @property
    def _choice(self) -> AnswerChoice:
        return self._answer.choices[0]

    def start(self) -> bytes:
        start = {**self._message([], None, None), "usage": usage_of(self._answer)}
        return named_event("message_start", {"message": start})

    def add(self, index: int, parsed: ParsedRound) -> bytes:
        return b"".join(map(self._event, parsed.events))

    def _event(self, event: OutputEvent) -> bytes:
        match event:
            case Reasoning(text) if text:
                begun = self._start_block("thinking", {"thinking": "", "signature": ""})
                return begun + self._delta("thinking_delta", thinking=text)
            case Content(text) if text:
                return self._start_block("text", {"text": ""}) + self._delta("text_delta", text=text)
            case CallStarted(_, id_, name):
                ended = self._end()
                return ended + self._start_block("tool_use", {"id": call_id(id_), "name": name, "input": {}})
            case CallArguments(_, text):
                return self._delta("input_json_delta", partial_json=text)
            case CallEnded():
                return self._end()
        return b""

    def _start_block(self, kind: str, block: Body) -> bytes:
        """Start a block, unless one of this kind is open."""
        if self._open == kind:
            return b""
        ended = self._end()
        self._open = kind
        block = {"type": kind, **block}
        return ended + named_event("content_block_start", {"index": self._num_blocks, "content_block": block})

    def _delta(self, kind: str, **body: str) -> bytes:
        return named_event("content_block_delta", {"index": self._num_blocks, "delta": {"type": kind, **body}})

    def _end(self) -> bytes:
        """Stop the open block."""
        if self._open is None:
            return b""
        signed = self._delta("signature_delta", signature="") if self._open == "thinking" else b""
        stopped = named_event("content_block_stop", {"index": self._num_blocks})
        self._open = None
        self._num_blocks = self._num_blocks + 1
        return signed + stopped

    def end(self, index: int) -> bytes:
        reason, stop = stop_of(self._choice)
        body = {"delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": usage_of(self._answer)}
        return self._end() + named_event("message_delta", body)

    def close(self) -> bytes:
        return named_event("message_stop", {})

    def wait(self, progress: Body | None = None) -> bytes:
        return named_event("ping", progress or {})

    def fail(self, error: ApiError) -> bytes:
        return error_event(error, self._answer.request_id)

    def whole(self) -> Body:
        blocks = [block for part in self._choice.parts if (block := block_of(part)) is not None]
        return {**self._message(blocks, *stop_of(self._choice)), "usage": usage_of(self._answer)}

    def _message(self, blocks: Sequence[Body], reason: str | None, stop: str | None) -> Body:
        return {
            "id": self._id, "type": "message", "role": "assistant", "model": self._answer.model, "content": blocks,
            "stop_reason": reason, "stop_sequence": stop,
        }  # fmt: skip


def block_of(part: Part) -> Body | None:
    """A part of a whole answer as a block; None if it is empty. An incomplete call is a text, since it has no input."""
    if isinstance(part, Call) and not part.is_complete:
        return {"type": "text", "text": f"{part.name} {part.arguments}".strip()}
    if isinstance(part, Call):
        return {"type": "tool_use", "id": call_id(part.id), "name": part.name, "input": arguments_of(part.arguments)}
    if not part.text:
        return None
    if part.is_reasoning:
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    return {"type": "text", "text": part.text}


def arguments_of(text: str) -> Body:
    """The arguments of a complete call."""
    return object_of(text) or {}


def call_id(id_: str) -> str:
    """The id of a call; ids for templates that demand another form stay as they are."""
    return id_.replace("call_", "toolu_", 1) if id_.startswith("call_") else id_


def stop_of(choice: AnswerChoice) -> tuple[str, str | None]:
    """Why a text ended, and the stop text that ended it."""
    if choice.ends_with_calls:
        return "tool_use", None
    if choice.finish is not FinishReason.STOP:
        return "max_tokens", None
    return ("stop_sequence", choice.stop) if choice.stop else ("end_turn", None)


def usage_of(answer: Answer) -> Body:
    """Token counts; the prompt's are divided into those read and those that were cached."""
    cached = answer.num_cached_tokens
    return {
        "input_tokens": answer.num_prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": answer.num_new_tokens,
        **({"forerun": {"prompt_change": answer.prompt_change}} if answer.prompt_change else {}),
    }


class AnthropicErrorDetail(BaseModel):
    """The fields of an error."""

    type: str
    message: str


class AnthropicErrorAnswer(BaseModel):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


def error_body(error: ApiError, request_id: str) -> Body:
    """An error. Claude Code shortens a conversation when it reads that the prompt is too long."""
    usual = "invalid_request_error" if error.status < FIRST_FAILED else "api_error"
    message = error.message
    if isinstance(error, PromptTooLongError):
        message = f"prompt is too long: {error.num_tokens} tokens > {error.max_length} maximum"
    told = {"type": ERRORS.get(error.status, usual), "message": message}
    return {"type": "error", "error": told, "request_id": request_id}


def error_event(error: ApiError, request_id: str) -> bytes:
    """An error that ends a stream."""
    return named_event("error", error_body(error, request_id))


PROTOCOL: Final = ApiProtocol(
    summary="Answer a conversation, in Anthropic's format.",
    paths=("/v1/messages", "/messages"),
    request=MessagesRequest,
    read=read,
    writer=MessagesWriter,
    keys=("id", "type", "role", "content", "usage"),
    error=error_body,
    error_event=error_event,
    error_type=AnthropicErrorAnswer,
    counting_paths=("/v1/messages/count_tokens", "/messages/count_tokens"),
)
