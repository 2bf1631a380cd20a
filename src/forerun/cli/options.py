"""The flags that generate and chat share besides the drafter's, and the engine's settings from them."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from forerun.checkpoints.gguf.checkpoint import USUAL_SAMPLING
from forerun.checkpoints.short_names.catalogue import SMOLLM2, named_models
from forerun.checkpoints.short_names.local import find_local
from forerun.cli.failures import say
from forerun.cli.flag_values import QUANTISED, read_object
from forerun.cli.flags import given_settings, option, variable_of, with_flags_of
from forerun.cli.logs import note
from forerun.core.config import AUTO_DEVICE, EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, DrafterConfig
from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.grammar import Grammar
from forerun.core.json_file import short

DEFAULTS: Final = SamplingParams()
SHOWN: Final = (
    "dtype",
    "weights",
    "inputs",
    "cache",
    "device",
    "exactness",
    "kernels",
)  # fields whose defaults the help shows
MODEL_HELP: Final = (
    "Short name (see forerun models), checkpoint folder, GGUF file or hub name [smollm2, else the built-in model]."
)
JSON_SCHEMA_FLAG: Final = option("--json-schema", "-j", help="JSON schema of the answer, or a file with it.")
GRAMMAR_FLAG: Final = option("--grammar", help="Grammar of the answer in llguidance's Lark, or a file with it.")
OWN_TO_MODELS: Final = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@with_flags_of()
class ModelOptions:
    """The target by a flag, as in other programs."""

    named_model: Annotated[str | None, option("--model", "-m", help="The same as the argument MODEL.")] = None

    def choose(self, argument: str | None) -> str:
        """The model named by argument, flag or environment variable, else the default one."""
        is_by_flag = self.named_model not in (None, os.environ.get(variable_of("--model")))
        if argument is not None and is_by_flag:
            raise ConfigError(f"the model is named twice, {argument} and --model {self.named_model}: leave out one")
        named = self.named_model if argument is None else argument
        return default_model() if named is None else named


def engine_config(options: object, **fixed: Any) -> EngineConfig:
    """The engine that the flags of a command ask for.

    Args:
        options: a group of options `with_flags_of(EngineConfig)`. --dtype int8, an older form, means --weights int8.
        fixed: settings without a flag in this group, such as target and drafter.
    """
    given = given_settings(EngineConfig, options)
    if given.get("dtype") in QUANTISED:
        rounded = given.pop("dtype")
        if given.setdefault("weights", rounded) != rounded:
            raise ConfigError(
                f"--dtype {rounded} and --weights {given['weights']} cannot be used together: leave out one"
            )
    if "chat_template_kwargs" in given:
        given["chat_template_kwargs"] = read_object(
            given["chat_template_kwargs"], flag="--chat-template-kwargs", example='{"enable_thinking": false}'
        )
    return EngineConfig(**fixed | given)


@with_flags_of(EngineConfig, panel="Model and machine", shown=SHOWN)
class EngineOptions:
    """Number formats, device and other settings of the engine."""

    device: Annotated[
        str,
        option(
            "--device",
            help="A torch device, such as cuda:0; auto chooses a GPU that works and has room, else cpu.",
        ),
    ] = AUTO_DEVICE

    def config(self, model: str, drafter: DrafterConfig) -> EngineConfig:
        """The engine that these flags ask for."""
        return engine_config(self, target=model, drafter=drafter, measures_speedup=True)


@with_flags_of(EngineConfig, panel=None, only=("dtype", "weights", "device", "num_threads"), shown=SHOWN)
class MachineOptions:
    """The settings of the engine for commands that need only these."""


@with_flags_of(SamplingParams, panel="Sampling", shown=("presence_penalty", "frequency_penalty"))
class SamplingOptions:
    """How tokens are chosen, when to stop, and the form of the answer."""

    json_schema: Annotated[str | None, JSON_SCHEMA_FLAG] = None
    grammar: Annotated[str | None, GRAMMAR_FLAG] = None

    def params(self, default: SamplingParams = DEFAULTS) -> SamplingParams:
        """The parameters that these flags ask for.

        Args:
            default: the model's parameters, used where a flag was not given. `--temperature 0` asks for greedy decoding
                and ignores them.
        """
        given = given_settings(SamplingParams, self)
        given["logit_bias"] = dict(map(read_bias, given.get("logit_bias", ())))
        if self.json_schema is not None and self.grammar is not None:
            raise ConfigError("--json-schema and --grammar both set the form of the answer: leave one out")
        if self.json_schema is not None:
            given["grammar"] = Grammar(kind="json_schema", text=text_or_file(self.json_schema, begin="{"))
        if self.grammar is not None:
            given["grammar"] = Grammar(kind="lark", text=text_or_file(self.grammar, begin="start:"))
        return replace(DEFAULTS if given.get("temperature") == 0 else default, **given)


def settle(sampling: SamplingOptions, default: SamplingParams) -> SamplingParams:
    """The parameters from flags and model together; those that come from the model are logged."""
    params = sampling.params(default)
    of_model = {
        name: value
        for name in OWN_TO_MODELS
        if getattr(sampling, name) is None and (value := getattr(params, name)) != getattr(DEFAULTS, name)
    }
    if of_model:
        listed = ", ".join(f"{name} {value:g}" for name, value in of_model.items())
        is_usual = all(getattr(default, name) == value for name, value in USUAL_SAMPLING.items())
        why = "the file has no sampling settings, so as in llama.cpp" if is_usual else "sampling as set by the model"
        note(f"{why}: {listed}; --temperature 0 is greedy")
    return params


def text_or_file(text: str, *, begin: str) -> str:
    """A text that begins with `begin`, else the text of the file with this name."""
    if text.lstrip().startswith(begin):
        return text
    try:
        return Path(text).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{short(text)} neither begins with {begin} nor is a file with text ({error}): give one of the two"
        ) from None


def read_bias(text: str) -> tuple[int, float]:
    """A token and the value to add to its logit, from the text of a flag."""
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias {text!r} must have the form ID=VALUE, such as 42=-1.5") from None


def default_model() -> str:
    """smollm2 if it is on this machine, or can be fetched on a terminal; else the built-in target, with a message."""
    model = named_models()[SMOLLM2]
    if find_local(model) is not None:
        return SMOLLM2
    obstacle = f"{SMOLLM2} is not on this machine; `forerun pull {SMOLLM2}` fetches it"
    if sys.stderr.isatty():
        from forerun.checkpoints.short_names.fetch import bring  # not free to import

        try:
            bring(model)
        except CheckpointError as error:
            obstacle = str(error)
        else:
            return SMOLLM2
    say(f"using the tiny built-in model, which knows no facts: {obstacle}")
    return BUILTIN_TARGET
