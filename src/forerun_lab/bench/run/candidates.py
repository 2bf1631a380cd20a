"""Open contestants by name, each with its settings: the fastest of its grid, on questions that are not measured."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, Final

from forerun.core.config import SamplingParams
from forerun.core.errors import ConfigError, ForerunError
from forerun_lab.bench.peers.catalogue import open_peer
from forerun_lab.bench.peers.messages import PeerPlan
from forerun_lab.bench.records.answers import Contestant
from forerun_lab.bench.records.run_folder import RunFolder
from forerun_lab.bench.records.run_plan import RunPlan
from forerun_lab.bench.run.drafters import DrafterContestant
from forerun_lab.bench.run.entrants import Entrant, Settings, grid_of, with_settings
from forerun_lab.bench.run.interleaved import PAUSE_S, warm_up

CLEARLY: Final = 1.01  # keep the default unless another setting is faster by this factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Opens contestants for a run.

    Args:
        entrants: our drafters, by label.
        tuning_prompts: token ids of prompts that are not measured.
    """

    plan: RunPlan
    folder: RunFolder
    entrants: Mapping[str, Entrant]
    peers: PeerPlan
    tuning_prompts: Sequence[Sequence[int]]

    def open(self, name: str, temperature: float) -> Contestant:
        """Open a contestant with the settings chosen for it, which are saved.

        Raises:
            ForerunError: it cannot take part.
        """
        known = self.folder.settings_of(name, temperature)
        return self._open_with(name, self._choose(name, temperature) if known is None else known)

    def _open_with(self, name: str, settings: Settings) -> Contestant:
        if name in self.entrants:
            config = self.entrants[name].config
            return DrafterContestant(name, replace(config, drafter=with_settings(config.drafter, settings)))
        return open_peer(name, self.peers, settings)

    def _choose(self, name: str, temperature: float) -> Settings:
        grid = self.entrants[name].grid if name in self.entrants else grid_of(name)
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


@dataclass(kw_only=True)
class Trial:
    """One setting and its result: tokens and seconds of whole calls."""

    settings: Settings
    num_tokens: int = 0
    wall_s: float = 0.0
    trouble: str | None = None

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s if self.wall_s else 0.0

    def to_json(self) -> dict[str, Any]:
        return {"settings": dict(self.settings), "tokens_per_s": self.tokens_per_s, "trouble": self.trouble}


def tune(
    open_with: Callable[[Settings], Contestant],
    grid: Sequence[Settings],
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> list[Trial]:
    """Try all settings in turn on each prompt; returns the trials, fastest first.

    The default, which is first in the grid, is first in the result unless another one is clearly faster.
    """
    trials = [Trial(settings=settings) for settings in grid]
    with ExitStack() as stack:
        contestants: list[tuple[Trial, Contestant]] = []
        for trial in trials:
            try:
                contestant = stack.enter_context(closing(open_with(trial.settings)))
                warm_up(contestant, prompts[0], params)
                contestants.append((trial, contestant))
            except ForerunError as error:
                trial.trouble = str(error)
        for prompt_ids in prompts:
            for trial, contestant in contestants:
                try_once(trial, contestant, prompt_ids, params)
    default = trials[0]
    best = max(trials, key=lambda trial: trial.tokens_per_s)
    chosen = best if best.tokens_per_s > CLEARLY * default.tokens_per_s else default
    return [chosen, *(trial for trial in trials if trial is not chosen)]


def try_once(trial: Trial, contestant: Contestant, prompt_ids: Sequence[int], params: SamplingParams) -> None:
    """Add one prompt to a trial; a contestant that fails is not tried again."""
    if trial.trouble is not None:
        return
    sleep(PAUSE_S)
    try:
        contestant.forget()
        turn = contestant.write(prompt_ids, params)
    except ForerunError as error:
        trial.trouble = str(error)
        trial.num_tokens = 0
        return
    trial.num_tokens += turn.num_new_tokens
    trial.wall_s += turn.wall_s
