"""forerun prepare --layer-skip: sets of sublayers that a model can skip when it drafts for itself."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forerun.cli.engine_loading import prepared_sets
from forerun.cli.failures import find_model, say
from forerun.cli.progress import progress
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.model_spec import WeightFormat
from forerun.core.places import cache_folder
from forerun.core.sublayers import ATTENTION, MLP, SkipSet

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun_lab.skip_finder import Findings


def prepare_sets(
    config: EngineConfig,
    out: Path | None,
    params: SamplingParams,
    *,
    data: Path | None,
    num_prompts: int,
    weights: WeightFormat,
) -> None:
    """Search for sets on the answers to questions, write those that were found, and print them.

    Args:
        out: the file of the sets; None: next to the model, or in forerun's cache.
        data: the file of questions; None: the built-in ones.
        weights: the copy of the weights to draft with.
    """
    sets = prepared_sets(find_model(config.target))
    from forerun_lab.skip_finder import find_skip_sets, keep_sets, place_for_sets  # imports torch

    place = place_for_sets(config.target, out, cache_folder())
    drafter = LayerSkip(weights=weights, sets=sets)
    with progress("searching") as show:
        prompts = _prompts(data, num_prompts, params)
        found = find_skip_sets(config, drafter, prompts, params, lambda number: show(number, num_prompts))
    _print(found)
    say(f"written to {keep_sets(config.target, found.sets, found.num_layers, place)}")


def _prompts(
    data: Path | None, num_prompts: int, params: SamplingParams
) -> "Callable[[Engine], Iterable[Sequence[int]]]":
    """First turns of questions, as the target's token ids."""
    from forerun_lab.bench.data.datasets import questions_in
    from forerun_lab.bench.data.prompts import Reader

    questions = questions_in(data)

    def read(engine: "Engine") -> Iterable[Sequence[int]]:
        reader = Reader(tokenizer=engine.tokenizer, max_length=engine.max_length)
        for question in reader.choose(questions, num_prompts, params.max_new_tokens or 0).measured:
            yield reader.prompt_after(question, ())

    return read


def _print(found: "Findings") -> None:
    """Print the sets as a table, and the expected speed of the best one."""
    print(f"{'set':<20}{'hits':>14}{'chance':>8}  skips")
    for item in found.sets:
        hits = f"{item.num_hits:.0f} of {item.num_rows:.0f}"
        chance = f"{item.num_hits / item.num_rows:.2f}" if item.num_rows else "-"
        print(f"{item.name:<20}{hits:>14}{chance:>8}  {_layers(item.skipped)}")
    ending = "settled" if found.has_settled else "not settled: more prompts may find better sets"
    print(
        f"{found.num_evaluations} evaluations, {ending}; the best set guesses right {found.chance:.0%} of the time and "
        f"should decode at {found.speedup:.2f}x the speed of plain decoding"
    )


def _layers(skipped: SkipSet) -> str:
    kinds: dict[str, list[str]] = {ATTENTION: [], MLP: []}
    for layer, kind in sorted(skipped):
        kinds[kind].append(str(layer))
    return ", ".join(f"{kind} {' '.join(layers)}" for kind, layers in kinds.items() if layers) or "nothing"
