"""forerun prepare: what a model can be given before its first request."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forerun.cli.declare import option, output, with_options
from forerun.cli.engine_loading import prepared_sets
from forerun.cli.failures import find_model, say, shows_errors
from forerun.cli.options import MachineOptions, engine_settings
from forerun.cli.prepare_awq import prepare_awq
from forerun.cli.prepare_ranks import prepare_ranks
from forerun.cli.progress import progress
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, LayerSkip
from forerun.core.errors import ConfigError, require
from forerun.core.model_spec import WeightFormat
from forerun.core.places import cache_folder
from forerun.core.sublayers import ATTENTION, MLP, SkipSet

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.skip_finder import Findings


@shows_errors
@with_options(MachineOptions)
def prepare(
    machine: MachineOptions,
    model: Annotated[str, typer.Argument(help="Checkpoint folder, GGUF file or hub name.")] = BUILTIN_TARGET,
    quantize: Annotated[
        Literal["awq"] | None, option("--quantize", help="Pack a plain folder's weights in 4 bits, into --out.")
    ] = None,
    target_ranks: Annotated[
        int | None, option("--target-ranks", help="Write the part of each of so many ranks, into --out.")
    ] = None,
    calib: Annotated[Path | None, option("--calib", help="Text to quantize by [the built-in prompts].")] = None,
    layer_skip: Annotated[
        bool, option("--layer-skip", help="Find sublayers that the model can skip when it drafts for itself.")
    ] = False,
    data: Annotated[Path | None, option("--data", help="A question file; default: the built-in prompts.")] = None,
    out: Annotated[
        Path | None, output("--out", help="What to write: of sets a file [beside the model, or forerun's cache].")
    ] = None,
    num_prompts: Annotated[int, option("--num-prompts", help="Questions to answer at most.")] = 64,
    max_new_tokens: Annotated[int, option("--max-new-tokens", help="Tokens of an answer at most.")] = 128,
    temperature: Annotated[float, option("--temperature", help="0 is greedy.")] = 0.0,
    seed: Annotated[int, option("--seed", help="Of sampling and search.")] = 1,
    draft_weights: Annotated[
        WeightFormat, option("--draft-weights", help="Copy of the weights that is drafted with.")
    ] = "plain",
) -> None:
    """Pack a model's weights in 4 bits (--quantize awq), write each rank's part (--target-ranks), or search for what it
    can skip as a draft (--layer-skip)."""
    if (quantize is not None or target_ranks is not None) == layer_skip:
        raise ConfigError(
            "say what to prepare: --layer-skip finds sublayers to skip in self-speculation; --quantize awq packs "
            "weights in 4 bits, --target-ranks writes each rank's part, and both of these may be asked for at once"
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
    sets = prepared_sets(find_model(model))
    from forerun.engine.skip_finder import find_skip_sets, keep_sets, place_for_sets  # imports torch

    place, drafter = (
        place_for_sets(model, out, cache_folder()),
        LayerSkip(weights=draft_weights, sets=sets),
    )
    with progress("searching") as show:
        prompts = _prompts(data, num_prompts, max_new_tokens)
        found = find_skip_sets(config, drafter, prompts, params, lambda number: show(number, num_prompts))
    _print(found)
    say(f"written to {keep_sets(model, found.sets, found.num_layers, place)}")


def _prompts(data: Path | None, num_prompts: int, max_new_tokens: int) -> "Callable[[Engine], Iterable[Sequence[int]]]":
    """First turns of questions, as the target reads them."""
    from forerun.bench.data.datasets import BUILTIN, load_dataset
    from forerun.bench.data.prompts import Reader

    questions = load_dataset(BUILTIN if data is None else str(data), cache=Path()).questions

    def read(engine: "Engine") -> Iterable[Sequence[int]]:
        reader = Reader(tokenizer=engine.tokenizer, max_length=engine.max_length)
        for question in reader.choose(questions, num_prompts, max_new_tokens).measured:
            yield reader.prompt_after(question, ())

    return read


def _print(found: "Findings") -> None:
    """The sets as a table, and what the best of them promises."""
    print(f"{'set':<20}{'hits':>14}{'chance':>8}  skips")
    for item in found.sets:
        hits = f"{item.num_hits:.0f} of {item.num_rows:.0f}"
        chance = f"{item.num_hits / item.num_rows:.2f}" if item.num_rows else "-"
        print(f"{item.name:<20}{hits:>14}{chance:>8}  {_layers(item.skipped)}")
    ending = "settled" if found.has_settled else "still open: more prompts may find better ones"
    print(
        f"{found.num_evaluations} evaluations, {ending}; the best set guesses right {found.chance:.0%} of the time and "
        f"promises {found.speedup:.2f}x the speed of plain decoding"
    )


def _layers(skipped: SkipSet) -> str:
    kinds: dict[str, list[str]] = {ATTENTION: [], MLP: []}
    for layer, kind in sorted(skipped):
        kinds[kind].append(str(layer))
    return ", ".join(f"{kind} {' '.join(layers)}" for kind, layers in kinds.items() if layers) or "nothing"
