"""OpenAI's completions: POST /v1/completions. With a suffix it fills in the middle."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict, Field

from forerun.server.protocols.answer import Answer, AnswerChoice, ParsedRound
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import Ids, Text, first_limit, has
from forerun.server.protocols.fields import whole as as_whole
from forerun.server.protocols.generation_request import GenerationRequest, Middle, PlainTexts
from forerun.server.protocols.logprobs import text_logprobs
from forerun.server.protocols.openai_writer import OpenaiWriter, finish_of, reported, usage_so_far
from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.response_format import ShapedFields
from forerun.server.protocols.sse import Body
from forerun.server.protocols.unsupported import UNSUPPORTED, refuse_unsupported
from forerun.text.output.events import Content

DEFAULT_TOKENS: Final = 16  # OpenAI's


ECHO_WITH_LOGPROBS: Final[Any] = {"allOf": [has("echo", "logprobs"), {"properties": {"echo": {"const": True}}}]}


class CompletionRequest(ShapedFields):
    """POST /v1/completions."""

    model_config = ConfigDict(json_schema_extra={"not": ECHO_WITH_LOGPROBS})
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=16, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=16, fail_fast=True)]
    )
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Annotated[int, Field(ge=0, le=20), BeforeValidator(as_whole)] | None = None

    def prompts(self) -> Sequence[str | Sequence[int]]:
        """All prompts, as texts or as lists of token ids."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        return [given] if isinstance(given[0], int) else given


def read(request: CompletionRequest) -> GenerationRequest:
    """Read a request for completions.

    Raises:
        ApiError: fields contradict each other, or are not supported.
    """
    refuse_unsupported(request.others)
    if request.echo and request.logprobs is not None:
        name = "echo with logprobs"
        raise invalid(f"{name} is not supported by this version.", param=name, code=UNSUPPORTED)
    limits = (request.max_tokens, request.n_predict, DEFAULT_TOKENS)
    return GenerationRequest(
        **request.common(logprobs=request.logprobs),
        prompt=prompt_of(request),
        param="prompt",
        limit=first_limit(*limits),
        **request.shape(),
        ignored=tuple(request.others),
    )


def prompt_of(request: CompletionRequest) -> PlainTexts | Middle:
    """The texts to continue, or the gap before a suffix."""
    prompts = request.prompts()
    if not request.suffix:
        return PlainTexts(prompts=prompts, echoes=bool(request.echo))
    (prompt,) = prompts if len(prompts) == 1 else (None,)
    if not isinstance(prompt, str):
        raise invalid("suffix: filling in before a suffix needs a single text as the prompt.", param="suffix")
    return Middle(prefix=prompt, suffix=request.suffix, echoes=bool(request.echo))


class CompletionsWriter(OpenaiWriter):
    """Writes completions."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer, prefix="cmpl", kind="text_completion", part="text", nothing="")

    def start(self) -> bytes:
        """The echoed prompts."""
        echoes = [(index, choice.echo) for index, choice in enumerate(self._answer.choices)]
        return b"".join(self._chunk(index, echo, **usage_so_far(self._answer)) for index, echo in echoes if echo)

    def add(self, index: int, parsed: ParsedRound) -> bytes:
        text = "".join(event.text for event in parsed.events if isinstance(event, Content))
        extra: Body = {} if parsed.details is None else {"forerun": parsed.details}
        logprobs = text_logprobs(parsed.logprobs)
        if not (text or extra or logprobs):
            return b""
        return self._chunk(index, text, logprobs=logprobs, **extra, **usage_so_far(self._answer))

    def whole(self) -> Body:
        choices = [choice_body(index, choice) for index, choice in enumerate(self._answer.choices)]
        return {"object": "text_completion", **self._about, "choices": choices, **reported(self._answer)}


def choice_body(index: int, choice: AnswerChoice) -> Body:
    """A whole text."""
    text = choice.echo + choice.content
    logprobs = text_logprobs(choice.logprobs)
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_of(choice)}


PROTOCOL: Final = ApiProtocol(
    summary="Continue texts.",
    paths=("/v1/completions", "/completions"),
    request=CompletionRequest,
    read=read,
    writer=CompletionsWriter,
    keys=("id", "object", "choices", "usage"),
)
