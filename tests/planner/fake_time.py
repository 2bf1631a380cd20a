"""The real engine in virtual time: passes take what their pace says, and nothing else takes any."""

from collections.abc import Callable

import pytest

from forerun.decoding import drafters
from forerun.decoding import host_loop as loop
from forerun.drafting import draft_tree
from forerun.model import pass_times, runner
from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun_lab.planner.virtual_time import VirtualClock


def rule_time(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """A clock in the place of the real one, wherever passes and rounds are timed; a paced pass moves it."""
    clock = VirtualClock()
    for module in (drafters, draft_tree, loop, pass_times, runner):
        monkeypatch.setattr(module, "perf_counter", clock)
    monkeypatch.setattr(runner, "wait_until", lambda end: clock.spend(max(0.0, end - clock.now)))
    return clock


def charge(model: Runner, spend: Callable[[int], float]) -> list[int]:
    """Let every pass of this runner spend the time of its rows; return a list that the rows are added to."""
    plain = model.forward
    rows = []

    def forward(inputs: ForwardInput, observe: None = None) -> object:
        rows.append(len(inputs.token_ids))
        spend(rows[-1])
        return plain(inputs, observe)

    model.forward = forward  # type: ignore[assignment, method-assign]
    return rows
