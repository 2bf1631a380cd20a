"""The drafters of this engine as contestants, and the settings among which each may be tuned."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from time import perf_counter
from typing import Any, Final, TypeVar

import torch

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import (
    BUILTIN_DRAFT,
    DRAFTERS,
    DrafterConfig,
    DraftModel,
    Parallel,
    automatic_drafter,
    paper_layer_skip,
)
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device
from forerun.core.steps import StepStats
from forerun.engine.engine import Engine
from forerun.engine.threads_and_cores import CorePlacement
from forerun_lab.bench.records.answers import RoundColumns, Turn

NONE: Final = "none"
Settings = Mapping[str, Any]
Config = TypeVar("Config", bound=DrafterConfig)
# The first entry is the default. Peers have as many entries.
GRIDS: Final[Mapping[str, tuple[Settings, ...]]] = {
    **{name: kind.grid for name, kind in DRAFTERS.items()},
    "layer_skip_paper": (
        {},
        {"depth": 4},
        {"depth": 8},
        {"depth": 16},
        {"verify_width": 16},
        {"verify_width": 64},
    ),
}


class DrafterContestant:
    """An engine with one drafter.

    Args:
        config: target, dtype, device, and the threads of target and drafter together; its drafter is not used.
        draft: the draft model; None: the built-in one.
    """

    def __init__(self, name: str, config: EngineConfig, settings: Settings, *, draft: str | None = None) -> None:
        self.name = name
        config = replace(config, drafter=drafter_config(name, draft, settings))
        try:
            self.engine = Engine(replace(config, num_threads=target_share(config)))
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"there is no memory for {name}, since every contestant has its own target ({error}): "
                "measure fewer at a time, or lower --max-length"
            ) from error

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        began = perf_counter()
        stream = self.engine.stream(prompt_ids, params)
        stats: list[StepStats] = []
        emitted_at_s: list[float] = []
        for step in stream:
            emitted_at_s.append(perf_counter() - began)
            stats.append(step.stats)
        result = stream.result()
        return Turn(
            text=result.text,
            num_new_tokens=len(result.token_ids),
            wall_s=emitted_at_s[-1],
            token_ids=result.token_ids,
            num_prompt_tokens=len(prompt_ids),
            emitted=tuple(item.num_accepted + 1 for item in stats),
            emitted_at_s=tuple(emitted_at_s),
            num_near_ties=result.stats.num_near_ties,
            rounds=columns_of(stats),
        )

    def forget(self) -> None:
        self.engine.forget()

    def close(self) -> None:
        self.engine.close()


def target_share(config: EngineConfig) -> int:
    """Threads of the target; a drafter in another process takes its threads from the same total.

    Raises:
        ConfigError: no thread is left for the target, on a device that computes with CPU threads.
    """
    drafter = config.drafter
    num_all = config.num_threads
    assert num_all is not None, "a run has a number of threads"
    if not isinstance(drafter, Parallel) or drafter.address is not None:
        return num_all
    num_threads = CorePlacement.of(config).draft_threads
    placement = read_device(config.device)
    num_left = num_all - num_threads
    if num_left < 1 and placement.torch_device == "cpu" and not placement.is_paced:
        threads = "the only thread" if num_all == 1 else f"all {num_all} threads"
        raise ConfigError(
            f"the drafter would take {threads}, and the target needs one too: give --threads {num_threads + 1} or more"
        )
    return max(1, num_left)


def columns_of(stats: Sequence[StepStats]) -> RoundColumns:
    """The rounds of a generation as columns."""
    names = [field.name for field in fields(RoundColumns)]
    return RoundColumns(**{name: tuple(getattr(item, name) for item in stats) for name in names})


def drafter_config(name: str, draft: str | None, settings: Settings) -> DrafterConfig:
    """The config of the drafter `name` with these fields changed; for `parallel` also fields of its draft.

    Raises:
        ConfigError: there is no such drafter or field.
    """
    draft_model = DraftModel(model=draft or BUILTIN_DRAFT)
    usual: dict[str, DrafterConfig] = {
        **{name: kind.config() for name, kind in DRAFTERS.items()},
        "auto": automatic_drafter(draft),
        "draft_model": draft_model,
        "parallel": Parallel(draft=draft_model),
        "layer_skip_paper": paper_layer_skip(),
    }
    if name not in usual:
        raise ConfigError(f"there is no drafter {name!r}: choose among {', '.join(GRIDS)}")
    config = usual[name]
    if isinstance(config, Parallel):
        of_draft = {key: settings[key] for key in settings.keys() & {field.name for field in fields(DraftModel)}}
        config = replace(config, draft=changed(draft_model, of_draft))
        settings = {key: value for key, value in settings.items() if key not in of_draft}
    return changed(config, settings)


def changed(config: Config, settings: Settings) -> Config:
    """The config with some fields changed."""
    known = {field.name for field in fields(config)}
    foreign = sorted(set(settings) - known)
    if foreign:
        raise ConfigError(
            f"{type(config).__name__} has no setting {foreign[0]!r}: choose among {', '.join(sorted(known))}"
        )
    return replace(config, **settings)
