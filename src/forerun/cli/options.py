"""The flags that generate and chat share beside the drafter's, and what they mean to the engine."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Final

from forerun.cli.declare import option
from forerun.cli.logs import note
from forerun.core.config import DTypeName, EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, DrafterConfig
from forerun.core.errors import ConfigError

DEFAULTS: Final = SamplingParams()
OWN_TO_MODELS: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
OF_THE_MODEL: Final = "[what the model's generation_config.json says]"
SAMPLING: Final = "Sampling"
MACHINE: Final = "Machine"
DTYPE_ALIASES: Final = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "fp64": "float64",
    "double": "float64",
}  # fmt: skip
QUANTISED: Final = ("int8", "int4")
DTYPE_HELP: Final = "What to compute in; int8 and int4 round the weights on loading."

KERNELS_HELP: Final = (
    "torch leaves the native CPU kernels and Triton's GPU kernels aside; triton insists on the latter."
)


class DType(StrEnum):
    """What to compute in. auto: what the checkpoint is stored in, where this machine computes in it fast.

    int8 and int4: weights are rounded to so many bits on loading.
    """

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"
    INT8 = "int8"
    INT4 = "int4"

    @classmethod
    def _missing_(cls, value: object) -> "DType | None":
        """The names that other programs have."""
        name = DTYPE_ALIASES.get(str(value))
        return None if name is None else cls(name)


class ExactnessName(StrEnum):
    """fast: any kernel. exact: every row computed alone, so that its bits depend on nothing else."""

    FAST = "fast"
    EXACT = "exact"


class KernelsChoice(StrEnum):
    """auto: the native kernels on a CPU, Triton's on a GPU, where they can run. torch: neither. triton: or an error."""

    AUTO = "auto"
    TORCH = "torch"
    TRITON = "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The target by a flag, as other programs have it."""

    named_model: Annotated[str | None, option("--model", "-m", help="The same as the argument MODEL.")] = None

    def choose(self, argument: str | None) -> str:
        """The model by argument or flag, else the built-in one."""
        if argument is not None and self.named_model is not None:
            raise ConfigError(f"the model is named twice, {argument} and --model {self.named_model}: leave out one")
        return argument or self.named_model or BUILTIN_TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What to compute in, and on what."""

    dtype: Annotated[DType, option("--dtype", help=DTYPE_HELP, panel=MACHINE)] = DType.AUTO
    quantization: Annotated[
        str | None, option("--quantization", help="int8 or int4: the same as --dtype int8 or int4.", panel=MACHINE)
    ] = None
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
    kernels: Annotated[KernelsChoice, option("--kernels", help=KERNELS_HELP, panel=MACHINE)] = KernelsChoice.AUTO
    threads: Annotated[int | None, option("--threads", "-t", help="CPU threads.", panel=MACHINE)] = None

    def config(self, model: str, drafter: DrafterConfig) -> EngineConfig:
        """The engine these flags ask for."""
        return EngineConfig(
            target=model,
            drafter=drafter,
            dtype=self._dtype(),
            device=self.device,
            max_length=self.max_length,
            exactness=self.exactness.value,
            kernels=self.kernels.value,
            num_threads=self.threads,
            measures_speedup=True,
        )

    def _dtype(self) -> DTypeName:
        if self.quantization is None:
            return self.dtype.value
        if self.quantization not in QUANTISED:
            raise ConfigError(
                f"--quantization {self.quantization} must be {' or '.join(QUANTISED)}, which round plain weights on "
                "loading; a checkpoint that is quantised already cannot be read yet: name a plain one"
            )
        if self.dtype not in (DType.AUTO, self.quantization):
            raise ConfigError(
                f"--quantization {self.quantization} and --dtype {self.dtype} exclude each other: leave out one"
            )
        return self.quantization  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen and when to stop."""

    max_new_tokens: Annotated[
        int | None,
        option(
            "--max-new-tokens",
            "--max-tokens",
            "-n",
            help="Tokens to write at most; -1: until the context is full [256, or what fits].",
            panel=SAMPLING,
        ),
    ] = DEFAULTS.max_new_tokens
    temperature: Annotated[
        float | None, option("--temperature", "--temp", help=f"0 is greedy. {OF_THE_MODEL}", panel=SAMPLING)
    ] = None
    top_k: Annotated[
        int | None, option("--top-k", help=f"Keep the k likeliest; 0 keeps all. {OF_THE_MODEL}", panel=SAMPLING)
    ] = None
    top_p: Annotated[
        float | None,
        option("--top-p", help=f"Keep the likeliest up to this probability. {OF_THE_MODEL}", panel=SAMPLING),
    ] = None
    min_p: Annotated[
        float | None,
        option("--min-p", help=f"Drop what is less likely than this share of the best. {OF_THE_MODEL}", panel=SAMPLING),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        option(
            "--repetition-penalty",
            "--repeat-penalty",
            help=f"Above 1: fewer repeats; 1 is none. {OF_THE_MODEL}",
            panel=SAMPLING,
        ),
    ] = None
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
    seed: Annotated[int | None, option("--seed", "-s", help="Same seed, same text.", panel=SAMPLING)] = DEFAULTS.seed

    def params(self, default: SamplingParams = DEFAULTS) -> SamplingParams:
        """What these flags ask for.

        Args:
            default: what holds for the model where a flag was not given. `--temperature 0` asks for greedy decoding and
                leaves all of it aside.
        """
        given = {name: value for name in OWN_TO_MODELS if (value := getattr(self, name)) is not None}
        return replace(
            DEFAULTS if self.temperature == 0 else default,
            **given,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=dict(map(_read_bias, self.logit_bias or ())),
            max_new_tokens=self.max_new_tokens,
            stop=tuple(self.stop or ()),
            ignore_eos=self.ignore_eos,
            seed=self.seed,
        )


def settle(sampling: SamplingOptions, default: SamplingParams) -> SamplingParams:
    """What flags and model together ask for; where the model has a say, that is told."""
    params = sampling.params(default)
    of_model = {
        name: value
        for name in OWN_TO_MODELS
        if getattr(sampling, name) is None and (value := getattr(params, name)) != getattr(DEFAULTS, name)
    }
    if of_model:
        listed = ", ".join(f"{name} {value:g}" for name, value in of_model.items())
        note(f"sampling as the model's generation_config.json says: {listed}; --temperature 0 is greedy")
    return params


def _read_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {text!r} must have the form ID=VALUE, such as 42=-1.5") from None
