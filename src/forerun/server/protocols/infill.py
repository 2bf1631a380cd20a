"""llama-server's fill in the middle: POST /infill."""

from typing import Annotated, Any, Final

from pydantic import Field

from forerun.core.steps import FinishReason
from forerun.server.protocols.answer import Answer, AnswerChoice, ParsedRound
from forerun.server.protocols.errors import ApiError
from forerun.server.protocols.fields import Fields, WritingFields, first_limit
from forerun.server.protocols.generation_request import GenerationRequest, Middle
from forerun.server.protocols.openai_writer import timings
from forerun.server.protocols.protocol import ApiProtocol, openai_event
from forerun.server.protocols.sse import COMMENT, Body, data_event
from forerun.server.protocols.unsupported import refuse_unsupported
from forerun.text.output.events import Content


class ExtraFile(Fields):
    """Another file, for context."""

    filename: str = "filename"
    text: str


class InfillRequest(WritingFields):
    """POST /infill.

    Args:
        prompt: the text between the prefix and the gap, such as the beginning of a line.
        response_fields: keys of the answer, such as content or timings/prompt_n; left out: all.
    """

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: Annotated[list[ExtraFile], Field(max_length=256)] | None = None
    prompt: str = ""
    response_fields: Annotated[list[str], Field(max_length=64)] | None = None


def read(request: InfillRequest) -> GenerationRequest:
    """Read a request to fill in a gap."""
    refuse_unsupported(request.others)
    files = [(file.filename, file.text) for file in request.input_extra or ()]
    return GenerationRequest(
        **{**request.common(), "num_choices": 1},
        prompt=Middle(prefix=request.input_prefix + request.prompt, suffix=request.input_suffix, files=files),
        param="input_prefix",
        limit=first_limit(request.n_predict, request.max_tokens),
        ignored=tuple(request.others),
        source=request,
    )


class InfillWriter:
    """Writes answers in llama-server's format."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def start(self) -> bytes:
        return b""

    def add(self, index: int, parsed: ParsedRound) -> bytes:
        text = "".join(event.text for event in parsed.events if isinstance(event, Content))
        return data_event({"index": 0, "content": text, "stop": False}) if text else b""

    def end(self, index: int) -> bytes:
        return data_event(self._body(""))

    def close(self) -> bytes:
        return b""

    def wait(self, progress: Body | None = None) -> bytes:
        return COMMENT if progress is None else data_event({"index": 0, "content": "", "stop": False, **progress})

    def fail(self, error: ApiError) -> bytes:
        return openai_event(error, self._answer.request_id)

    def whole(self) -> Body:
        names = self._answer.request.source.response_fields
        body = self._body(self._answer.choices[0].content)
        return body if names is None else {name: value for name in names if (value := value_at(body, name)) is not None}

    def _body(self, text: str) -> Body:
        answer = self._answer
        choice = self._answer.choices[0]
        return {
            "index": 0,
            "content": text,
            "model": answer.model,
            "stop": True,
            "stop_type": stop_type(choice),
            "stopping_word": choice.stop,
            "truncated": False,
            "tokens_predicted": answer.num_new_tokens,
            "tokens_evaluated": answer.num_prompt_tokens,
            "tokens_cached": answer.num_cached_tokens,
            "timings": timings(answer.results[0].stats),
        }


def stop_type(choice: AnswerChoice) -> str:
    """Why a text ended, in llama-server's words."""
    if choice.finish is not FinishReason.STOP:
        return "limit"
    return "word" if choice.stop else "eos"


def value_at(body: Body, path: str) -> Any:
    """The value at a path such as timings/prompt_n; None if there is none."""
    found: Any = body
    for name in path.split("/"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


PROTOCOL: Final = ApiProtocol(
    summary="Fill in the gap between two texts.",
    paths=("/infill",),
    request=InfillRequest,
    read=read,
    writer=InfillWriter,
    keys=(),
)
