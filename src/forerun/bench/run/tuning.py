"""Choose a contestant's settings: the fastest of its grid, on questions that are not measured."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from time import sleep
from typing import Any, Final

from forerun.bench.records.answers import Contestant
from forerun.bench.run.interleaved import PAUSE_S, warm_up
from forerun.core.config import SamplingParams
from forerun.core.errors import ForerunError

CLEARLY: Final = 1.01  # keep the default unless another setting is faster by this factor

Settings = Mapping[str, Any]


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
        trial.trouble, trial.num_tokens = str(error), 0
        return
    trial.num_tokens += turn.num_new_tokens
    trial.wall_s += turn.wall_s
