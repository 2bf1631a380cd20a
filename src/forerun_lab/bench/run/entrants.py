"""The drafters that take part in a run, each with its engine, and the settings among which each may be tuned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

from forerun.core.config import EngineConfig
from forerun.core.drafter_config import DRAFTERS, DrafterConfig, Parallel
from forerun.core.errors import ConfigError
from forerun_lab.bench.peers.catalogue import PEERS, RENAMED, find_peer

NONE: Final = "none"
Settings = Mapping[str, Any]
Config = TypeVar("Config", bound=DrafterConfig)
# The first entry is the default. Peers have as many entries.
GRIDS: Final[Mapping[str, tuple[Settings, ...]]] = {
    **{name: kind.grid for name, kind in DRAFTERS.items()},
    "ngram": DRAFTERS["prompt_lookup"].grid,
    "layer_skip_paper": (
        {},
        {"depth": 4},
        {"depth": 8},
        {"depth": 16},
        {"verify_width": 16},
        {"verify_width": 64},
    ),
    "parallel_paper": (
        {},
        {"verify_width": 4},
        {"verify_width": 16},
        {"draft_width": 4},
        {"verify_width": 4, "draft_width": 4},
        {"verify_width": 16, "draft_width": 4},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A drafter of this engine that takes part in a run.

    Args:
        label: its name in records and reports; each entrant has another one.
        name: the drafter, as in `forerun generate --drafter`.
        config: its whole engine.
        is_shaped: whether the user gave settings of its drafts, which are then not tuned.
    """

    label: str
    name: str
    config: EngineConfig
    is_shaped: bool = False

    @property
    def grid(self) -> Sequence[Settings]:
        """The settings among which it may be tuned, its own first."""
        return ({},) if self.is_shaped else GRIDS[self.name]


def grid_of(name: str) -> Sequence[Settings]:
    """The settings among which a contestant of this name is tuned, its defaults first.

    Raises:
        ConfigError: there is no such contestant.
    """
    if name in GRIDS:
        return GRIDS[name]
    if name in PEERS or name in RENAMED:
        return find_peer(name).grid
    raise ConfigError(f"there is no contestant {name!r}: drafters are {', '.join(GRIDS)}; peers {', '.join(PEERS)}")


def with_settings(config: Config, settings: Settings) -> Config:
    """The drafter's config with these fields changed; for `parallel` also fields of its draft.

    Raises:
        ConfigError: there is no such field.
    """
    if isinstance(config, Parallel):
        known = {field.name for field in fields(config.draft)}
        of_draft = {name: value for name, value in settings.items() if name in known}
        config = replace(config, draft=replace(config.draft, **of_draft))
        settings = {name: value for name, value in settings.items() if name not in known}
    return replace(config, **settings)
