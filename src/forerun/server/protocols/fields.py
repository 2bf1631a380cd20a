"""Types of request fields that several protocols share, with bounds on every number, string and list."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema

from forerun.core.config import MOST_LOGPROBS, NUM_SEEDS
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.unsupported import UNSUPPORTED

MAX_TOKENS: Final = 2**20  # ids of a prompt: more than any model's context
TOKEN_IDS: Final = 2**31  # more than any vocabulary
KEY_PATTERN: Final = "^(0|[1-9][0-9]{0,8})$"  # without leading zeros, so that no token has two biases
MIN_TEMPERATURE: Final = 1e-4  # below this sampling is greedy, see SamplingParams
RANDOM_SEED: Final = -1  # llama-server's, and its clients', for a fresh seed
SAME_NAMED: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
)


Object: TypeAlias = dict[str, Any]


def whole(value: Any) -> Any:
    """Turn 3.0 into 3, since some clients write all JSON numbers with a decimal point."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and float in set(map(type, value)):
        return [whole(item) for item in value]
    return value


def has(*names: str) -> Object:
    """A JSON schema that requires these fields to be present and not null."""
    return {"required": [*names], "properties": {name: {"not": {"type": "null"}} for name in names}}


def is_true(name: str) -> Object:
    """A JSON schema that requires this field to be true."""
    return {"required": [name], "properties": {name: {"const": True}}}


StopText: TypeAlias = Annotated[str, StringConstraints(max_length=1024)]
StopTexts: TypeAlias = Annotated[list[StopText], Field(max_length=64)]
TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=TOKEN_IDS)]
Bias: TypeAlias = Annotated[float, Field(ge=-100.0, le=100.0)]
TokenKey: TypeAlias = Annotated[str, StringConstraints(pattern=KEY_PATTERN)]
Limit: TypeAlias = Annotated[int, Field(ge=-1), BeforeValidator(whole)]  # -1: as many as fit
Name: TypeAlias = Annotated[str, StringConstraints(max_length=256)]
Temperature: TypeAlias = Annotated[float, Field(ge=0.0, le=5.0)]
Share: TypeAlias = Annotated[float, Field(ge=0.0, le=1.0)]
NumLikeliest: TypeAlias = Annotated[int, Field(ge=0, le=MOST_LOGPROBS), BeforeValidator(whole)]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**20), BeforeValidator(whole)]
# fail_fast: an error report for every item could take a thousand times the memory of the list itself.
Ids: TypeAlias = Annotated[
    list[TokenId], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True), BeforeValidator(whole)
]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
MAX_OBJECTS: Final = 1024
Objects: TypeAlias = Annotated[list[Object], Field(max_length=MAX_OBJECTS, fail_fast=True)]


class Fields(BaseModel):
    """Base class with strict types: the string "1" is not a number. Unknown fields are collected, to be reported."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @property
    def others(self) -> dict[str, Any]:
        """Unknown fields of the request."""
        return self.model_extra or {}


class StreamOptions(Fields):
    """The information that a stream has besides the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class ForerunOptions(Fields):
    """Options that only this server has.

    Args:
        drafter: "none" decodes without a drafter; null uses the server's own.
        details: every event also has the source of each token, and the tree and times of the round.
    """

    drafter: Annotated[str, StringConstraints(min_length=1, max_length=32)] | None = None
    details: bool = False


class TextPart(Fields):
    """A text as a part of a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(Fields):
    """A refusal as a part of an earlier answer."""

    type: Literal["refusal"]
    refusal: str


TEXT_KINDS: Final = ("text", "input_text", "output_text", "refusal")


def other_kind(kind: str) -> str:
    """Return the type of a part that is no text; raises ValueError for a text's."""
    if kind in TEXT_KINDS:
        raise ValueError("a part of this type needs its text")
    return kind


class OtherPart(Fields):
    """A part that is no text, such as an image."""

    type: Annotated[str, AfterValidator(other_kind), WithJsonSchema({"type": "string", "not": {"enum": [*TEXT_KINDS]}})]


Parts: TypeAlias = Annotated[list[TextPart | RefusalPart], Field(max_length=1024)]
AllParts: TypeAlias = Annotated[list[TextPart | RefusalPart | OtherPart], Field(max_length=1024)]


class WritingFields(Fields):
    """Fields that chat, completions and infill share.

    Sampling fields that are left out default to what the model's authors recommend. A temperature below 0.0001 is
    greedy, and so is a top_p of 0.
    """

    model: Name | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0.01, le=100.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=1024)] | None = None
    stop: StopText | StopTexts | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=64), BeforeValidator(whole)] | None = None
    ignore_eos: bool | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), BeforeValidator(whole)] | None = None
    n: Annotated[int, Field(ge=1, le=16), BeforeValidator(whole)] | None = None
    max_tokens: Limit | None = None
    n_predict: Limit | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    user: Name | None = None
    forerun: ForerunOptions | None = None

    def common(self, **sampling: Any) -> dict[str, Any]:
        """The arguments of `GenerationRequest` that these fields give, with further fields of SamplingParams.

        Raises:
            ApiError: log-probabilities of the prompt are asked of a stream.
        """
        if self.stream and sampling.get("prompt_logprobs") is not None:
            raise invalid(
                "stream: log-probabilities of a prompt come only with a whole answer: leave stream out.",
                param="stream",
                code=UNSUPPORTED,
            )
        options = self.forerun or ForerunOptions()
        stream_options = self.stream_options or StreamOptions()
        return {
            "model": self.model,
            "sampling": self.sampling() | sampling,
            "num_choices": self.n or 1,
            "streams": bool(self.stream),
            "shows_progress": bool(self.return_progress),
            "drafter": options.drafter,
            "shows_usage": stream_options.include_usage,
            "shows_usage_so_far": stream_options.include_usage and stream_options.continuous_usage_stats,
            "shows_details": options.details,
        }

    def sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams that the client gave."""
        given = {name: getattr(self, name) for name in SAME_NAMED}
        if self.repetition_penalty is None:
            given["repetition_penalty"] = self.repeat_penalty
        if self.logit_bias:
            given["logit_bias"] = {int(token_id): bias for token_id, bias in self.logit_bias.items()}
        if self.stop_token_ids:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        return plain_sampling(given, seed=self.seed, stop=self.stop)


def plain_sampling(
    given: dict[str, Any], *, seed: int | None = None, stop: str | list[str] | None = None
) -> dict[str, Any]:
    """Fields of SamplingParams, from their values as other servers write them; those of None are left out."""
    given = {name: value for name, value in given.items() if value is not None}
    if "top_k" in given:
        given["top_k"] = max(0, given["top_k"])
    if given.get("top_p") == 0.0:  # only the best token is left
        del given["top_p"]
        given["temperature"] = 0.0
    if given.get("temperature", 1.0) < MIN_TEMPERATURE:
        given["temperature"] = 0.0
    if seed not in (None, RANDOM_SEED):
        given["seed"] = seed % NUM_SEEDS  # negative seeds are allowed
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    given["stop"] = tuple(text for text in stops if text)
    return given


def thought_limit(**given: Any) -> int | None:
    """The first limit on the tokens of thoughts that is given, by the names of its fields; None: the server's.

    Raises:
        ApiError: it is not a whole number >= -1.
    """
    for name, value in given.items():
        number = whole(value)
        if number is None:
            continue
        if not isinstance(number, int) or isinstance(number, bool) or number < -1:
            raise invalid(f"{name} must be a whole number of tokens, or -1 for no limit.", param=name.partition(".")[0])
        return MAX_TOKENS if number == -1 else number
    return None


def first_limit(*limits: int | None) -> int | None:
    """The first limit that is given; None: as many tokens as fit."""
    given = next((limit for limit in limits if limit is not None), None)
    return None if given in (None, -1) else given
