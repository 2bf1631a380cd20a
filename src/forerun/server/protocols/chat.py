"""OpenAI's chat completions: POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, StringConstraints, WithJsonSchema

from forerun.server.protocols.answer import Answer, AnswerChoice, ParsedRound
from forerun.server.protocols.conversation import ConversationFields, conversation
from forerun.server.protocols.described import TOOL_CHOICE
from forerun.server.protocols.fields import (
    Fields,
    Limit,
    NumLikeliest,
    Object,
    Parts,
    TextPart,
    first_limit,
    has,
    is_true,
    thought_limit,
)
from forerun.server.protocols.generation_request import GenerationRequest
from forerun.server.protocols.logprobs import chat_logprobs
from forerun.server.protocols.openai_writer import OpenaiWriter, finish_of, reported, usage_so_far
from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.response_format import ShapedFields
from forerun.server.protocols.sse import Body
from forerun.server.protocols.tools import function_tools, tool_use
from forerun.server.protocols.unsupported import refuse_unsupported
from forerun.text.output.events import CallArguments, CallStarted, OutputEvent, Reasoning
from forerun.text.output.events import Content as ContentEvent


class PredictedContent(Fields):
    """A text that the answer probably resembles; drafts are taken from it first."""

    type: Literal["content"]
    content: str | Parts

    def text(self) -> str:
        """The whole text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in self.content)


class ChatRequest(ConversationFields, ShapedFields):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(json_schema_extra={"not": {"allOf": [is_true("stream"), has("prompt_logprobs")]}})
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: NumLikeliest | None = None
    prompt_logprobs: NumLikeliest | None = None
    prediction: PredictedContent | None = None
    tool_choice: Annotated[str | Object, WithJsonSchema(TOOL_CHOICE)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, StringConstraints(max_length=32)] | None = None
    reasoning: Object | None = None
    thinking: Object | None = None
    enable_thinking: bool | None = None
    thinking_budget_tokens: Limit | None = None
    reasoning_budget_tokens: Limit | None = None
    thinking_token_budget: Limit | None = None

    def num_logprobs(self) -> int | None:
        """Alternatives per token; None for no log-probabilities. top_logprobs alone implies logprobs."""
        is_asked = self.top_logprobs if self.logprobs is None else self.logprobs
        return (self.top_logprobs or 0) if is_asked else None

    def effort(self) -> str | None:
        """How much the model should think."""
        given = self.reasoning_effort or (self.reasoning or {}).get("effort")
        return given if isinstance(given, str) else None

    def thinks(self) -> bool | None:
        """Whether the model should think."""
        if self.enable_thinking is not None:
            return self.enable_thinking
        kind = (self.thinking or {}).get("type")
        return kind != "disabled" if isinstance(kind, str) else None

    def max_thought_tokens(self) -> int | None:
        """The limit on thoughts, as the clients of llama-server, vLLM, Anthropic and OpenRouter write it."""
        return thought_limit(
            thinking_budget_tokens=self.thinking_budget_tokens,
            reasoning_budget_tokens=self.reasoning_budget_tokens,
            thinking_token_budget=self.thinking_token_budget,
            **{
                "thinking.budget_tokens": (self.thinking or {}).get("budget_tokens"),
                "reasoning.max_tokens": (self.reasoning or {}).get("max_tokens"),
            },
        )


def read(request: ChatRequest) -> GenerationRequest:
    """Read a chat request.

    Raises:
        ApiError: fields contradict each other, or are not supported.
    """
    refuse_unsupported(request.others)
    tools, ignored = function_tools(request.tools or ())
    use = tool_use(tools, request.tool_choice, is_parallel=request.parallel_tool_calls is not False)
    prompt, unread = conversation(request, use, effort=request.effort(), thinks=request.thinks())
    prompt = replace(prompt, max_thought_tokens=request.max_thought_tokens())
    return GenerationRequest(
        **request.common(logprobs=request.num_logprobs(), prompt_logprobs=request.prompt_logprobs),
        prompt=prompt,
        param="messages",
        limit=first_limit(request.max_completion_tokens, request.max_tokens, request.n_predict),
        **request.shape(),
        prediction="" if request.prediction is None else request.prediction.text(),
        ignored=[*request.others, *ignored, *unread],
        source=request,
    )


class ChatWriter(OpenaiWriter):
    """Writes chat completions."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer, prefix="chatcmpl", kind="chat.completion.chunk", part="delta", nothing={})

    def start(self) -> bytes:
        begin = {"role": "assistant", "content": ""}
        return b"".join(
            self._chunk(index, begin, **usage_so_far(self._answer)) for index in range(len(self._answer.choices))
        )

    def add(self, index: int, parsed: ParsedRound) -> bytes:
        deltas = list(deltas_of(parsed.events))
        extra: Body = {} if parsed.details is None else {"forerun": parsed.details}
        logprobs = chat_logprobs(parsed.logprobs)
        if not deltas and (extra or logprobs):
            deltas = [{}]
        written = b""
        for delta in deltas:  # the round's numbers belong to its first event
            written += self._chunk(index, delta, logprobs=logprobs, **extra, **usage_so_far(self._answer))
            extra = {}
            logprobs = None
        return written

    def whole(self) -> Body:
        choices = [choice_body(index, choice) for index, choice in enumerate(self._answer.choices)]
        prompt = self._answer.prompt_logprobs(0).by_id(self._answer.request.sampling.get("prompt_logprobs"))
        return {"object": "chat.completion", **self._about, "choices": choices, **prompt, **reported(self._answer)}


def deltas_of(events: Sequence[OutputEvent]) -> Sequence[Body]:
    """The events of a round as deltas; neighbours of one kind are joined."""
    deltas: list[Body] = []
    for event in events:
        match event:
            case Reasoning(text) | ContentEvent(text):
                key = "reasoning_content" if isinstance(event, Reasoning) else "content"
                if deltas and key in deltas[-1]:
                    deltas[-1][key] += text
                else:
                    deltas.append({key: text})
            case CallStarted(index, id_, name):
                function = {"name": name, "arguments": ""}
                deltas.append({"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]})
            case CallArguments(index, text):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
    return deltas


def choice_body(index: int, choice: AnswerChoice) -> Body:
    """A whole text."""
    message: Body = {"role": "assistant", "content": choice.content, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.calls
        ]
    logprobs = chat_logprobs(choice.logprobs)
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_of(choice)}


PROTOCOL: Final = ApiProtocol(
    summary="Answer a conversation.",
    paths=("/v1/chat/completions", "/chat/completions"),
    request=ChatRequest,
    read=read,
    writer=ChatWriter,
    keys=("id", "object", "choices", "usage"),
)
