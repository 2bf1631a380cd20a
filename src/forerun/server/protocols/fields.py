"""Request schemas, with bounds on every number, string and list."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from forerun.server.protocols.unsupported import require_text_parts

MAX_TOKENS: Final = 2**20  # more than any model's context; larger values are cut to what fits
TOKEN_IDS: Final = 2**31  # more than any vocabulary
KEY_PATTERN: Final = "^(0|[1-9][0-9]{0,8})$"  # without leading zeros, so that no token has two biases


def whole(value: Any) -> Any:
    """Turn 3.0 into 3, since some clients write all JSON numbers with a decimal point."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and float in set(map(type, value)):
        return [whole(item) for item in value]
    return value


StopText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
Bias: TypeAlias = Annotated[float, Field(ge=-100.0, le=100.0)]
TokenKey: TypeAlias = Annotated[str, StringConstraints(pattern=KEY_PATTERN)]
Count: TypeAlias = Annotated[int, Field(ge=1, le=MAX_TOKENS), BeforeValidator(whole)]
# fail_fast: an error report for every item could take a thousand times the memory of the list itself.
Ids: TypeAlias = Annotated[
    list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True), BeforeValidator(whole)
]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


def has(*names: str) -> dict[str, Any]:
    """A JSON schema that requires these fields to be present and not null."""
    return {"required": [*names], "properties": {name: {"not": {"type": "null"}} for name in names}}


ECHO_WITH_LOGPROBS: Final[Any] = {"allOf": [has("echo", "logprobs"), {"properties": {"echo": {"const": True}}}]}
ONE_OF_TWO: Final[Any] = [has("prompt"), has("messages")]


class Fields(BaseModel):
    """Base class with strict types: the string "1" is no number. Unknown fields are collected, to be reported."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @property
    def others(self) -> dict[str, Any]:
        """Unknown fields of the request."""
        return self.model_extra or {}


class StreamOptions(Fields):
    """What a stream reports besides the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class TextPart(Fields):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class PredictedContent(Fields):
    """A text that the answer probably resembles; drafts are taken from it first."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(max_length=64)]


class ForerunOptions(Fields):
    """Options that only this server has.

    Args:
        drafter: "none" decodes without a drafter; null uses the server's own.
        details: every event also has the source of each token, and the tree and times of the round.
    """

    drafter: Annotated[str, StringConstraints(min_length=1, max_length=32)] | None = None
    details: bool = False


class ChatMessage(Fields):
    """One message. Additional fields are passed to the chat template."""

    role: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    content: Annotated[
        str | Annotated[list[TextPart], Field(max_length=64)] | None, BeforeValidator(require_text_parts)
    ] = None


class WritingRequest(Fields):
    """Fields that chat and completions share.

    Sampling fields that are left out default to what the model's authors recommend. A temperature below 0.0001 is
    greedy.
    """

    model: Annotated[str, StringConstraints(max_length=256)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**20), BeforeValidator(whole)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=1024)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=4)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64), BeforeValidator(whole)] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), BeforeValidator(whole)] | None = None
    n: Annotated[int, Field(ge=1, le=16), BeforeValidator(whole)] | None = None
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=256)] | None = None
    forerun: ForerunOptions | None = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def options(self) -> ForerunOptions:
        return self.forerun or ForerunOptions()

    @property
    def says_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(WritingRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), BeforeValidator(whole)] | None = None
    prediction: PredictedContent | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None

    def num_logprobs(self) -> int | None:
        """Alternatives per token; None for no log-probabilities. top_logprobs alone implies logprobs."""
        is_asked = self.top_logprobs if self.logprobs is None else self.logprobs
        return (self.top_logprobs or 0) if is_asked else None

    def predicted(self) -> str:
        """The predicted text; empty if there is none."""
        content = "" if self.prediction is None else self.prediction.content
        return content if isinstance(content, str) else "".join(part.text for part in content)


class CompletionRequest(WritingRequest):
    """POST /v1/completions."""

    model_config = ConfigDict(json_schema_extra={"not": ECHO_WITH_LOGPROBS})
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=16, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=16, fail_fast=True)]
    )
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20), BeforeValidator(whole)] | None = None

    def num_logprobs(self) -> int | None:
        """See `ChatRequest.num_logprobs`."""
        return self.logprobs

    def prompts(self) -> "list[str] | list[list[int]]":
        """All prompts, as texts or as lists of token ids."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if isinstance(given[0], int):
            return [given]
        return given


class TokenizeRequest(Fields):
    """POST /tokenize: a text, or messages to format with the chat template."""

    model_config = ConfigDict(json_schema_extra={"oneOf": ONE_OF_TWO})
    model: Annotated[str, StringConstraints(max_length=256)] | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=2048, fail_fast=True)] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None


class DetokenizeRequest(Fields):
    """POST /detokenize."""

    model: Annotated[str, StringConstraints(max_length=256)] | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS, fail_fast=True), BeforeValidator(whole)]
