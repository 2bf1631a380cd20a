"""Open contestants by name, each with its tuned settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.bench.peers.catalogue import PEERS, RENAMED, find_peer, open_peer
from forerun.bench.peers.messages import PeerPlan
from forerun.bench.records.answers import Contestant
from forerun.bench.records.run_folder import RunFolder
from forerun.bench.records.run_plan import RunPlan
from forerun.bench.run.drafters import GRIDS, DrafterContestant, DrafterPlan
from forerun.bench.run.tuning import tune
from forerun.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Opens contestants for a run.

    Args:
        tuning_prompts: token ids of prompts that are not measured.
    """

    plan: RunPlan
    folder: RunFolder
    drafters: DrafterPlan
    peers: PeerPlan
    tuning_prompts: Sequence[Sequence[int]]

    def open(self, name: str, temperature: float) -> Contestant:
        """Open a contestant with the settings chosen for it, which are saved.

        Raises:
            ForerunError: it cannot take part.
        """
        known = self.folder.settings_of(name, temperature)
        return self._open_with(name, self._choose(name, temperature) if known is None else known)

    def _open_with(self, name: str, settings: Mapping[str, Any]) -> Contestant:
        if name in GRIDS:
            return DrafterContestant(name, self.drafters, settings)
        return open_peer(name, self.peers, settings)

    def _choose(self, name: str, temperature: float) -> Mapping[str, Any]:
        grid = grid_of(name)
        if not self.plan.tune or len(grid) == 1:
            self.folder.choose(name, temperature, grid[0], [])
            return grid[0]
        if not self.tuning_prompts:
            raise ConfigError("there is no question left to tune on: lower --num-prompts, or leave out --tune")
        params = self.plan.params(temperature, 0)
        trials = tune(lambda settings: self._open_with(name, settings), grid, self.tuning_prompts, params)
        best = trials[0]
        if best.trouble is not None:
            raise ConfigError(best.trouble)
        self.folder.choose(name, temperature, best.settings, [trial.to_json() for trial in trials])
        return best.settings


def grid_of(name: str) -> Sequence[Mapping[str, Any]]:
    """The settings among which a contestant is tuned, its defaults first.

    Raises:
        ConfigError: there is no such contestant.
    """
    if name in GRIDS:
        return GRIDS[name]
    if name in PEERS or name in RENAMED:
        return find_peer(name).grid
    raise ConfigError(f"there is no contestant {name!r}: drafters are {', '.join(GRIDS)}; peers {', '.join(PEERS)}")
