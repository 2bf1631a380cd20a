"""OpenAI's completions: POST /v1/completions. With a suffix it fills in the middle."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

from forerun.server.protocols.answer import Answer, AnswerChoice, ParsedRound
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import Ids, NumLikeliest, Text, first_limit, has, is_true
from forerun.server.protocols.generation_request import GenerationRequest, Middle, PlainTexts
from forerun.server.protocols.logprobs import text_logprobs
from forerun.server.protocols.openai_writer import OpenaiWriter, finish_of, reported, usage_so_far
from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.response_format import ShapedFields
from forerun.server.protocols.sse import Body
from forerun.server.protocols.unsupported import UNSUPPORTED, refuse_unsupported
from forerun.text.output.events import Content

DEFAULT_TOKENS: Final = 16  # OpenAI's


ECHO_WITH_LOGPROBS: Final[Any] = {"allOf": [is_true("echo"), has("logprobs")]}
OF_PROMPT: Final[Any] = {"anyOf": [ECHO_WITH_LOGPROBS, has("prompt_logprobs")]}


class CompletionRequest(ShapedFields):
    """POST /v1/completions."""

    model_config = ConfigDict(json_schema_extra={"not": {"allOf": [is_true("stream"), OF_PROMPT]}})
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=16, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=16, fail_fast=True)]
    )
    echo: bool | None = None
    suffix: str | None = None
    logprobs: NumLikeliest | None = None
    prompt_logprobs: NumLikeliest | None = None

    def prompts(self) -> Sequence[str | Sequence[int]]:
        """All prompts, as texts or as lists of token ids."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        return [given] if isinstance(given[0], int) else given

    def num_prompt_logprobs(self) -> int | None:
        """Alternatives per token of the prompt; None for no log-probabilities."""
        asked = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((number for number in asked if number is not None), default=None)


def read(request: CompletionRequest) -> GenerationRequest:
    """Read a request for completions.

    Raises:
        ApiError: fields contradict each other, or are not supported.
    """
    refuse_unsupported(request.others)
    limits = (request.max_tokens, request.n_predict, DEFAULT_TOKENS)
    return GenerationRequest(
        **request.common(logprobs=request.logprobs, prompt_logprobs=request.num_prompt_logprobs()),
        prompt=prompt_of(request),
        param="prompt",
        limit=first_limit(*limits),
        **request.shape(),
        ignored=tuple(request.others),
        source=request,
    )


def prompt_of(request: CompletionRequest) -> PlainTexts | Middle:
    """The texts to continue, or the gap before a suffix."""
    prompts = request.prompts()
    if not request.suffix:
        return PlainTexts(prompts=prompts, echoes=bool(request.echo))
    (prompt,) = prompts if len(prompts) == 1 else (None,)
    if not isinstance(prompt, str):
        raise invalid("suffix: filling in before a suffix needs a single text as the prompt.", param="suffix")
    if request.echo and request.logprobs is not None:
        message = "suffix: echo with logprobs has no place for a suffix: leave one of the three out."
        raise invalid(message, param="suffix", code=UNSUPPORTED)
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
        choices = [self._choice(index, choice) for index, choice in enumerate(self._answer.choices)]
        return {"object": "text_completion", **self._about, "choices": choices, **reported(self._answer)}

    def _choice(self, index: int, choice: AnswerChoice) -> Body:
        """A whole text."""
        request: CompletionRequest = self._answer.request.source
        prompt = self._answer.prompt_logprobs(index)
        echoed = prompt.entries(request.logprobs) if request.echo and request.logprobs is not None else []
        return {
            "index": index,
            "text": choice.echo + choice.content,
            "logprobs": text_logprobs(choice.logprobs, echoed),
            "finish_reason": finish_of(choice),
            **prompt.by_id(request.prompt_logprobs),
        }


PROTOCOL: Final = ApiProtocol(
    summary="Continue texts.",
    paths=("/v1/completions", "/completions"),
    request=CompletionRequest,
    read=read,
    writer=CompletionsWriter,
    keys=("id", "object", "choices", "usage"),
)
