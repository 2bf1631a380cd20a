"""forerun prepare: prepares a model before its first request."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from forerun.cli.declare import option, output, with_options
from forerun.cli.options import MachineOptions, engine_settings
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import ConfigError, require
from forerun.core.model_spec import WeightFormat
from forerun_lab.cli.prepare_awq import prepare_awq
from forerun_lab.cli.prepare_ranks import prepare_ranks
from forerun_lab.cli.prepare_sets import prepare_sets


@with_options(MachineOptions)
def prepare(
    machine: MachineOptions,
    model: Annotated[str, typer.Argument(help="Checkpoint folder, GGUF file or hub name.")] = BUILTIN_TARGET,
    quantize: Annotated[
        Literal["awq"] | None, option("--quantize", help="Pack a folder's plain weights in 4 bits, into --out.")
    ] = None,
    target_ranks: Annotated[
        int | None, option("--target-ranks", help="Write the parts of this many ranks, into --out.")
    ] = None,
    calib: Annotated[Path | None, option("--calib", help="Text to quantize by [the built-in prompts].")] = None,
    layer_skip: Annotated[
        bool, option("--layer-skip", help="Find sublayers that the model can skip when it drafts for itself.")
    ] = False,
    data: Annotated[Path | None, option("--data", help="A question file; default: the built-in prompts.")] = None,
    out: Annotated[
        Path | None,
        output(
            "--out",
            metavar="PATH",
            help="Folder to write; with --layer-skip, a file [next to the model, or in the cache].",
        ),
    ] = None,
    num_prompts: Annotated[int, option("--num-prompts", help="Maximum number of questions.")] = 64,
    max_new_tokens: Annotated[int, option("--max-new-tokens", help="Maximum tokens per answer.")] = 128,
    temperature: Annotated[float, option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, option("--seed", help="Seed for sampling and search.")] = 1,
    draft_weights: Annotated[
        WeightFormat, option("--draft-weights", help="Copy of the weights to draft with.")
    ] = "plain",
) -> None:
    """Pack weights in 4 bits (--quantize awq), divide them among ranks (--target-ranks), or find sublayers to skip
    (--layer-skip)."""
    if (quantize is not None or target_ranks is not None) == layer_skip:
        raise ConfigError(
            "say what to prepare: --layer-skip finds sublayers to skip in self-speculation; --quantize awq packs "
            "weights in 4 bits, --target-ranks writes each rank's part, and these two can be combined"
        )
    if target_ranks is not None:
        config = EngineConfig(target=model, target_ranks=target_ranks, **engine_settings(machine))
        prepare_ranks(config, out, is_packed=quantize is not None, calib=calib)
        return
    if quantize is not None:
        prepare_awq(EngineConfig(target=model, **engine_settings(machine)), out, calib)
        return
    require(num_prompts >= 1, f"num_prompts {num_prompts} must be >= 1")
    params = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    config = EngineConfig(target=model, **engine_settings(machine))
    prepare_sets(config, out, params, data=data, num_prompts=num_prompts, weights=draft_weights)
