"""The flags that generate and chat share, and what they mean to the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, Final

from forerun.cli.declare import option
from forerun.core.config import (
    DrafterConfig,
    DraftModel,
    EngineConfig,
    NoDrafter,
    PromptLookup,
    SamplingParams,
    automatic_drafter,
)
from forerun.core.errors import ConfigError

DEFAULTS: Final = SamplingParams()
SPECULATION: Final = "Speculation"
SAMPLING: Final = "Sampling"
MACHINE: Final = "Machine"


class DrafterName(StrEnum):
    """Who drafts. auto: the named draft model, the built-in pair's own, else prompt lookup. ngram: prompt lookup."""

    AUTO = "auto"
    NONE = "none"
    DRAFT_MODEL = "draft_model"
    PROMPT_LOOKUP = "prompt_lookup"
    NGRAM = "ngram"


class DType(StrEnum):
    """What to compute in. auto: what the checkpoint is stored in, where this machine computes in it fast."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


class ExactnessName(StrEnum):
    """fast: any kernel. exact: every row computed alone, so that its bits depend on nothing else."""

    FAST = "fast"
    EXACT = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which models, who drafts, on what."""

    draft: Annotated[
        str | None,
        option("--draft", "--draft-model", "-md", help="Smaller model with the same tokens.", panel=SPECULATION),
    ] = None
    drafter: Annotated[
        DrafterName, option("--drafter", "--spec-method", help="Who drafts; ngram is prompt_lookup.", panel=SPECULATION)
    ] = DrafterName.AUTO
    verify_width: Annotated[
        int | None, option("--verify-width", help="Rows the target verifies per round.", panel=SPECULATION)
    ] = None
    draft_width: Annotated[
        int | None, option("--draft-width", help="Nodes one draft step expands.", panel=SPECULATION)
    ] = None
    depth: Annotated[
        int | None,
        option("--depth", "--spec-tokens", "--num-draft-tokens", help="Draft steps per round.", panel=SPECULATION),
    ] = None
    children: Annotated[
        int | None, option("--children", help="Continuations tried per drafted token.", panel=SPECULATION)
    ] = None
    dtype: Annotated[DType, option("--dtype", help="What to compute in.", panel=MACHINE)] = DType.AUTO
    device: Annotated[str, option("--device", help="A torch device, such as cuda:0.", panel=MACHINE)] = "cpu"
    max_length: Annotated[
        int | None,
        option(
            "--max-length", "--max-model-len", "--ctx-size", "-c", help="Tokens of prompt and answer.", panel=MACHINE
        ),
    ] = None
    exactness: Annotated[ExactnessName, option("--exactness", help="exact computes each row alone.", panel=MACHINE)] = (
        ExactnessName.FAST
    )
    threads: Annotated[int | None, option("--threads", "-t", help="CPU threads.", panel=MACHINE)] = None

    def config(self, model: str) -> EngineConfig:
        """The engine these flags ask for."""
        return EngineConfig(
            target=model,
            drafter=self._drafter(model),
            dtype=self.dtype.value,
            device=self.device,
            max_length=self.max_length,
            exactness=self.exactness.value,
            num_threads=self.threads,
        )

    def _drafter(self, model: str) -> DrafterConfig:
        chosen: DrafterConfig
        match self.drafter:
            case DrafterName.AUTO:
                chosen = automatic_drafter(model, self.draft)
            case DrafterName.NONE:
                chosen = NoDrafter()
            case DrafterName.DRAFT_MODEL:
                chosen = self._draft_model(model)
            case DrafterName.PROMPT_LOOKUP | DrafterName.NGRAM:
                chosen = PromptLookup()
        return replace(chosen, **self._settings_for(chosen))

    def _draft_model(self, model: str) -> DrafterConfig:
        automatic = automatic_drafter(model, self.draft)
        if not isinstance(automatic, DraftModel):
            raise ConfigError(f"--drafter draft_model needs a draft for {model}: name a smaller model with --draft")
        return automatic

    def _settings_for(self, drafter: DrafterConfig) -> Mapping[str, Any]:
        """The shape flags that were given, which must be settings of this drafter."""
        names = ("verify_width", "draft_width", "depth", "children")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        known = {field.name for field in fields(drafter)}
        foreign = [f"--{name.replace('_', '-')}" for name in given if name not in known]
        if self.draft is not None and not isinstance(drafter, DraftModel):
            foreign.insert(0, "--draft")
        if foreign:
            raise ConfigError(
                f"{' and '.join(foreign)} has no effect on the drafter {_name_of(drafter)}: leave it out, or choose "
                "--drafter draft_model"
            )
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen and when to stop."""

    max_new_tokens: Annotated[
        int | None,
        option(
            "--max-new-tokens",
            "--max-tokens",
            "-n",
            help="Tokens to write at most [256, or what fits].",
            panel=SAMPLING,
        ),
    ] = DEFAULTS.max_new_tokens
    temperature: Annotated[
        float, option("--temperature", "--temp", help="0 always takes the likeliest token.", panel=SAMPLING)
    ] = DEFAULTS.temperature
    top_k: Annotated[int, option("--top-k", help="Keep the k likeliest; 0 keeps all.", panel=SAMPLING)] = DEFAULTS.top_k
    top_p: Annotated[float, option("--top-p", help="Keep the likeliest up to this probability.", panel=SAMPLING)] = (
        DEFAULTS.top_p
    )
    min_p: Annotated[
        float, option("--min-p", help="Drop what is less likely than this share of the best.", panel=SAMPLING)
    ] = DEFAULTS.min_p
    repetition_penalty: Annotated[
        float, option("--repetition-penalty", help="Above 1: fewer repeats.", panel=SAMPLING)
    ] = DEFAULTS.repetition_penalty
    presence_penalty: Annotated[
        float, option("--presence-penalty", help="Taken off tokens written before.", panel=SAMPLING)
    ] = DEFAULTS.presence_penalty
    frequency_penalty: Annotated[
        float, option("--frequency-penalty", help="Taken off per time a token was written.", panel=SAMPLING)
    ] = DEFAULTS.frequency_penalty
    logit_bias: Annotated[
        list[str] | None, option("--logit-bias", help="ID=VALUE, added to a token's score; repeatable.", panel=SAMPLING)
    ] = None
    stop: Annotated[list[str] | None, option("--stop", help="End before this text; repeatable.", panel=SAMPLING)] = None
    ignore_eos: Annotated[
        bool, option("--ignore-eos", help="Go on after the model's own end of text.", panel=SAMPLING)
    ] = False
    seed: Annotated[int | None, option("--seed", help="Same seed, same text.", panel=SAMPLING)] = DEFAULTS.seed

    def params(self) -> SamplingParams:
        """What these flags ask for."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(map(_read_bias, self.logit_bias or ())),
            max_new_tokens=self.max_new_tokens,
            stop=tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
        )


def _read_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {text!r} must have the form ID=VALUE, such as 42=-1.5") from None


def _name_of(drafter: DrafterConfig) -> DrafterName:
    match drafter:
        case NoDrafter():
            return DrafterName.NONE
        case DraftModel():
            return DrafterName.DRAFT_MODEL
        case PromptLookup():
            return DrafterName.PROMPT_LOOKUP
