"""Find skip sets for a model offline."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from forerun.checkpoints.open import BUILTIN_FOLDERS, open_source
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import LayerSkip
from forerun.core.errors import ConfigError
from forerun.core.output_file import require_writable
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.drafting.layer_skip.set_files import NamedSet, sets_beside, sets_in_cache, write_sets
from forerun.drafting.policies import Policies, SkipPolicy, TreePolicy
from forerun.engine.engine import Engine

OnAnswer = Callable[[int], None]
FEWEST_ROWS: Final = 32.0  # scored rows of a set, at least, for it to be saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of a search.

    Args:
        sets: the one in use first, then others with enough rows scored.
        num_layers: layers of the model.
        chance: probability that a guess of the best set is right.
        speedup: expected tokens per second with it over plain decoding, from the pass times measured here.
        num_evaluations: sets scored over 32 tokens each, or the equivalent in smaller portions.
        has_settled: whether the search found nothing better for a long time.
    """

    sets: tuple[NamedSet, ...]
    num_layers: int
    chance: float
    speedup: float
    num_evaluations: int
    has_settled: bool


def find_skip_sets(
    config: EngineConfig,
    drafter: LayerSkip,
    prompts: Callable[[Engine], Iterable[Sequence[int]]],
    params: SamplingParams,
    on_answer: OnAnswer = lambda _: None,
) -> Findings:
    """Answer prompts with candidates scored in every pass, until the search has settled.

    Args:
        drafter: config of the self-drafting; its search has no time limit.
        prompts: maps the engine to the prompts as ids.
        on_answer: called after every answer with the number of answers.

    Raises:
        ConfigError: the model has no sublayer that can be skipped.
    """
    policies = Policies(tree=TreePolicy(looks_up=False), skip=SkipPolicy(search_share=1.0, seed=params.seed or 0))
    with Engine(replace(config, drafter=replace(drafter, search="gated")), policies=policies) as engine:
        own = engine.drafting.held.get("layer_skip")
        search = own.search.strategy if isinstance(own, LayerSkipDrafter) else None
        if not isinstance(search, GatedStrategy):
            raise ConfigError(
                f"{config.target} has {engine.spec.num_layers} layers, but skipping needs at least 3: choose a larger "
                "model"
            )
        for number, prompt_ids in enumerate(prompts(engine), start=1):
            engine.generate(prompt_ids, params)
            on_answer(number)
            if not search.is_searching:
                break
        context = search.speed_model.costs.context
        return Findings(
            sets=tuple(item for place, item in enumerate(search.known()) if not place or item.num_rows >= FEWEST_ROWS),
            num_layers=engine.spec.num_layers,
            chance=search.chance(),
            speedup=search.speed(context) / search.speed_model.plain_speed(),
            num_evaluations=search.num_scored,
            has_settled=not search.is_searching,
        )


def place_for_sets(target: str, out: Path | None = None, cache_folder: Path | None = None) -> Path:
    """The path to write sets to: `out`, else where an engine reads them: next to the model, or in a cache folder.

    Raises:
        ConfigError: none of these is writable.
    """
    if out is not None:
        require_writable(out)
        return out
    source = open_source(target)
    places = [] if target in BUILTIN_FOLDERS else [sets_beside(source.path)]
    if cache_folder is not None:
        places.append(sets_in_cache(cache_folder, source.identity()))
    for place in places:
        with suppress(ConfigError):
            require_writable(place)
            return place
    tried = f"neither {' nor '.join(map(str, places))} can be written" if places else "there is no folder for them"
    raise ConfigError(f"the sets of {target} cannot be saved, because {tried}: name a file")


def keep_sets(target: str, sets: Sequence[NamedSet], num_layers: int, place: Path) -> Path:
    """Write a model's sets to the path of `place_for_sets`."""
    write_sets(place, open_source(target).identity(), num_layers, sets)
    return place
