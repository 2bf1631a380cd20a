"""OpenAI's Responses API without stored state: POST /v1/responses."""

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import WithJsonSchema

from forerun.server.protocols.answer import Answer, AnswerChoice, Call, ParsedRound, Part, Passage, id_maker
from forerun.server.protocols.described import HAS_FORMAT, ITEM, RESPONSES_TOOL, TOOL_CHOICE, items
from forerun.server.protocols.errors import ApiError, invalid
from forerun.server.protocols.fields import (
    Fields,
    Limit,
    Name,
    Object,
    Objects,
    Share,
    Temperature,
    first_limit,
    plain_sampling,
    thought_limit,
)
from forerun.server.protocols.generation_request import Chat, GenerationRequest
from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.response_format import format_grammar
from forerun.server.protocols.responses_history import ItemReader, OwnTool, offered_tools
from forerun.server.protocols.sse import Body, named_event
from forerun.server.protocols.tools import tool_use
from forerun.server.protocols.unsupported import UNSUPPORTED, is_part, require_readable
from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent, Reasoning
from forerun.text.output.json_text import object_of

NUM_OF_ID: Final = 32  # letters and digits of an item's id
STATEFUL: Final = ("previous_response_id", "conversation", "background", "prompt")
STATELESS: Final = "responses are not stored on this server: send the whole conversation as input."


class ResponsesRequest(Fields):
    """POST /v1/responses."""

    model: Name | None = None
    input: str | Annotated[Objects, items(ITEM)]
    instructions: str | None = None
    tools: Annotated[Objects, items(RESPONSES_TOOL)] | None = None
    tool_choice: Annotated[str | Object, WithJsonSchema(TOOL_CHOICE)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Object | None = None
    text: Annotated[Object, WithJsonSchema(HAS_FORMAT)] | None = None
    max_output_tokens: Limit | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    stream: bool | None = None
    return_progress: bool | None = None
    store: bool | None = None
    metadata: Object | None = None


def read(request: ResponsesRequest) -> GenerationRequest:
    """Read a request.

    Raises:
        ApiError: it relies on stored state, or an item or a tool cannot be read.
    """
    for name in STATEFUL:
        if request.others.get(name):
            raise invalid(f"{name}: {STATELESS}", param=name, code=UNSUPPORTED)
    reader = ItemReader()
    offered = offered_tools(request.tools or ())
    items = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input
    for place, item in enumerate(items):
        reader.read(place, item)
    last = items[-1] if items else {}
    before = items[-2] if len(items) > 1 else {}
    is_attached = str(before.get("type")).endswith("_output")  # by an agent, as a part of the tool's result
    if last.get("role") == "user" and isinstance(last.get("content"), list) and not is_attached:
        require_readable([*filter(is_part, last["content"])], f"input.{len(items) - 1}.content")
    first = [{"role": "system", "content": request.instructions}] if request.instructions else []
    reasoning = request.reasoning or {}
    effort = reasoning.get("effort")
    shape = (request.text or {}).get("format")
    given = {"temperature": request.temperature, "top_p": request.top_p}
    return GenerationRequest(
        prompt=Chat(
            messages=[*first, *reader.messages],
            tool_use=tool_use(offered.tools, request.tool_choice, is_parallel=request.parallel_tool_calls is not False),
            effort=effort if isinstance(effort, str) else None,
            max_thought_tokens=thought_limit(**{"reasoning.max_tokens": reasoning.get("max_tokens")}),
        ),
        param="input",
        model=request.model,
        sampling=plain_sampling(given),
        limit=first_limit(request.max_output_tokens),
        grammar=format_grammar(shape, "text.format"),
        grammar_at="text.format.schema",
        streams=bool(request.stream),
        shows_progress=bool(request.return_progress),
        ignored=[*request.others, *offered.ignored, *reader.ignored],
        source=request,
    )


class ResponsesWriter:
    """Writes responses. In a stream, every item is done before the next one is added."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._request = answer.request.source
        self._own = offered_tools(self._request.tools or ()).own
        self._num_events = 0
        self._make_id = id_maker(answer.key)
        self._ids: list[str] = []  # of the items that were added
        self._open: Part | None = None  # the part of the last item
        self._item_id = ""

    @property
    def _choice(self) -> AnswerChoice:
        return self._answer.choices[0]

    def start(self) -> bytes:
        return self._event("response.created", response=self._response("in_progress")) + self.wait()

    def wait(self, progress: Body | None = None) -> bytes:
        return self._event("response.in_progress", response=self._response("in_progress"), **(progress or {}))

    def add(self, index: int, parsed: ParsedRound) -> bytes:
        return b"".join(map(self._of, parsed.events))

    def _of(self, event: OutputEvent) -> bytes:
        match event:
            case Reasoning(text) | Content(text) if text:
                begun = self._add_passage(is_reasoning=isinstance(event, Reasoning))
                return begun + self._passage_delta(text)
            case CallStarted(_, id_, name):
                return self._add_item(Call(id_, name, []))
            case CallArguments(_, text):
                assert isinstance(self._open, Call), "arguments follow the start of their call"
                self._open.pieces.append(text)
                is_custom = own_tool(self._own, self._open).is_custom  # its text is known when it is complete
                return b"" if is_custom else self._delta("response.function_call_arguments.delta", text)
            case CallEnded():
                return self._end("completed")
        return b""

    def _add_passage(self, *, is_reasoning: bool) -> bytes:
        if isinstance(self._open, Passage) and self._open.is_reasoning == is_reasoning:
            return b""
        return self._add_item(Passage(is_reasoning, []))

    def _passage_delta(self, text: str) -> bytes:
        assert isinstance(self._open, Passage), "a passage was begun"
        self._open.pieces.append(text)
        if self._open.is_reasoning:
            return self._delta("response.reasoning_text.delta", text, content_index=0)
        return self._delta("response.output_text.delta", text, content_index=0, logprobs=[])

    def _add_item(self, part: Part) -> bytes:
        """Add an item; the last one is done."""
        ended = self._end("incomplete" if isinstance(self._open, Call) else "completed")
        self._open = part
        self._ids.append(self._make_id(NUM_OF_ID))
        item = self._item(part, "in_progress", is_new=True)
        self._item_id = item["id"]
        written = ended + self._event("response.output_item.added", output_index=self._index, item=item)
        if isinstance(part, Passage) and not part.is_reasoning:
            written += self._item_event("response.content_part.added", content_index=0, part=text_part(""))
        return written

    def _end(self, status: str) -> bytes:
        """The open item is done."""
        part = self._open
        self._open = None
        if part is None:
            return b""
        item = self._item(part, status)
        match part:
            case Passage(True, _):
                written = self._item_event("response.reasoning_text.done", content_index=0, text=part.text)
            case Passage():
                written = self._item_event(
                    "response.output_text.done", content_index=0, text=part.text, logprobs=[]
                ) + self._item_event("response.content_part.done", content_index=0, part=text_part(part.text))
            case Call() if own_tool(self._own, part).is_custom:
                text = item["input"]
                written = self._delta("response.custom_tool_call_input.delta", text) if text else b""
                written += self._item_event("response.custom_tool_call_input.done", input=text)
            case Call():
                name = item["name"]
                arguments = item["arguments"]
                written = self._item_event("response.function_call_arguments.done", name=name, arguments=arguments)
        return written + self._event("response.output_item.done", output_index=self._index, item=item)

    def end(self, index: int) -> bytes:
        return self._end(self._status) if self._open is None else self._end(self._status_of(self._open, is_last=True))

    def close(self) -> bytes:
        return self._event(f"response.{self._status}", response=self.whole())

    def fail(self, error: ApiError) -> bytes:
        response = {**self._response("failed"), "error": {"code": error.code, "message": error.message}}
        return self._event("response.failed", response=response)

    def whole(self) -> Body:
        parts = [part for part in self._choice.parts if isinstance(part, Call) or part.text]
        while len(self._ids) < len(parts):  # a stream has given ids to its items already
            self._ids.append(self._make_id(NUM_OF_ID))
        items = [
            self._item(part, self._status_of(part, is_last=part is parts[-1]), place=place)
            for place, part in enumerate(parts)
        ]
        cut = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        usage = usage_of(self._answer)
        return {**self._response(self._status), "output": items, "incomplete_details": cut, "usage": usage}

    @property
    def _status(self) -> str:
        """Incomplete only if a limit cut the answer: Codex ends its turn with an error then. After a call that the
        model itself left incomplete, which its item says, Codex goes on and tells the model what was wrong."""
        return "incomplete" if self._choice.is_cut else "completed"

    def _status_of(self, part: Part, *, is_last: bool) -> str:
        if isinstance(part, Call):
            return "completed" if part.is_complete else "incomplete"
        return self._status if is_last else "completed"

    @property
    def _index(self) -> int:
        return len(self._ids) - 1

    def _item(self, part: Part, status: str, *, is_new: bool = False, place: int = -1) -> Body:
        return item_of(part, self._ids[place], status, own=self._own, is_new=is_new)

    def _delta(self, event: str, text: str, /, **body: Any) -> bytes:
        return self._item_event(event, delta=text, **body)

    def _item_event(self, event: str, /, **body: Any) -> bytes:
        return self._event(event, item_id=self._item_id, output_index=self._index, **body)

    def _event(self, event: str, /, **body: Any) -> bytes:
        number = self._num_events
        self._num_events = self._num_events + 1
        return named_event(event, {"sequence_number": number, **body})

    def _response(self, status: str) -> Body:
        """The response without its output."""
        request = self._request
        answer = self._answer
        return {
            **empty_response(f"resp_{answer.key}", answer.created_s, status),
            "completed_at": int(time.time()) if status == "completed" else None,
            "model": answer.model,
            "instructions": request.instructions,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_output_tokens": request.max_output_tokens,
            "reasoning": request.reasoning or {"effort": None, "summary": None},
            "text": request.text or {"format": {"type": "text"}},
            "metadata": request.metadata or {},
        }


def item_of(part: Part, id_: str, status: str, *, own: Mapping[str, OwnTool], is_new: bool) -> Body:
    """A part of an answer as an item.

    Args:
        own: the client's tools by the names that the model sees.
        is_new: nothing of it is written yet.
    """
    if isinstance(part, Call):
        return call_item(part, id_, status, own_tool(own, part))
    if part.is_reasoning:
        content = [] if is_new else [{"type": "reasoning_text", "text": part.text}]
        thought = {"summary": [], "content": content, "encrypted_content": None}
        return {"type": "reasoning", "id": f"rs_{id_}", **thought, "status": status}
    content = [] if is_new else [text_part(part.text)]
    return {"type": "message", "id": f"msg_{id_}", "role": "assistant", "status": status, "content": content}


def call_item(call: Call, id_: str, status: str, own: OwnTool) -> Body:
    """A call as an item, with the client's own name of the tool."""
    about = {"call_id": call.id, "name": own.name, "status": status}
    if own.namespace is not None:
        about["namespace"] = own.namespace
    if own.is_custom:
        return {"type": "custom_tool_call", "id": f"ctc_{id_}", **about, "input": custom_input(call.arguments)}
    return {"type": "function_call", "id": f"fc_{id_}", **about, "arguments": call.arguments}


def own_tool(own: Mapping[str, OwnTool], call: Call) -> OwnTool:
    """The client's tool that a call means."""
    return own.get(call.name) or OwnTool(name=call.name)


def custom_input(arguments: str) -> str:
    """The text for a custom tool; the arguments themselves if the call is incomplete."""
    found = object_of(arguments)
    if found is None:
        return arguments
    text = found.get("input", "")
    return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)


def text_part(text: str) -> Body:
    """A text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def empty_response(id_: str, created_s: int, status: str) -> Body:
    """The fields of every response."""
    return {
        "id": id_, "object": "response", "created_at": created_s, "status": status, "incomplete_details": None,
        "error": None, "output": [], "truncation": "disabled", "store": False, "previous_response_id": None,
        "usage": None,
    }  # fmt: skip


def usage_of(answer: Answer) -> Body:
    """Token counts."""
    num_prompt = answer.num_prompt_tokens
    num_new = answer.num_new_tokens
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": answer.num_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": num_new,
        "output_tokens_details": {"reasoning_tokens": sum(item.num_reasoning_tokens for item in answer.choices)},
        "total_tokens": num_prompt + num_new,
    }


def failed_event(error: ApiError, request_id: str) -> bytes:
    """An error that ends a stream that has lost its writer."""
    response = empty_response(f"resp_{request_id}", int(time.time()), "failed")
    told = {**response, "error": {"code": error.code, "message": error.message}}
    return named_event("response.failed", {"sequence_number": 0, "response": told})


PROTOCOL: Final = ApiProtocol(
    summary="Answer a conversation, in the format of the Responses API.",
    paths=("/v1/responses", "/responses"),
    request=ResponsesRequest,
    read=read,
    writer=ResponsesWriter,
    keys=("id", "object", "output", "usage"),
    error_event=failed_event,
)
