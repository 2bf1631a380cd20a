"""Which setting wins, who is left out, and that everybody is tried on the same prompts in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from forerun import ConfigError, SamplingParams
from forerun_lab.bench.peers.messages import PeerError
from forerun_lab.bench.records.answers import Turn
from forerun_lab.bench.run import candidates
from forerun_lab.bench.run.candidates import Trial, tune

PROMPTS = ([1], [2], [3])
PARAMS = SamplingParams(max_new_tokens=10, seed=0)
GRID = ({}, {"width": 1}, {"width": 2})


@dataclass(kw_only=True)
class Pace:
    """A contestant that takes so long for each prompt, in seconds that are only told; None: it breaks there."""

    name: str
    times_s: Mapping[int, float | None]
    calls: list[tuple[str, int]]
    is_closed: bool = False

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        assert params.max_new_tokens == 10
        is_warm_up = params.ignore_eos
        self.calls.append((f"warm {self.name}" if is_warm_up else self.name, prompt_ids[0]))
        wall_s = 100.0 if is_warm_up else self.times_s[prompt_ids[0]]
        if wall_s is None:
            raise PeerError("it broke")
        return Turn(text="", num_new_tokens=10, wall_s=wall_s)

    def forget(self) -> None:
        self.calls.append((f"forget {self.name}", 0))

    def close(self) -> None:
        self.is_closed = True


@dataclass(kw_only=True)
class Shop:
    """Opens contestants whose speed depends on `width`; the default has width 0."""

    times_s: Mapping[int, Mapping[int, float | None] | None]
    opened: list[Pace] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)

    def open(self, settings: Mapping[str, Any]) -> Pace:
        width = settings.get("width", 0)
        times_s = self.times_s[width]
        if times_s is None:
            raise ConfigError("there is no room for it")
        self.opened.append(Pace(name=str(width), times_s=times_s, calls=self.calls))
        return self.opened[-1]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "PAUSE_S", 0.0)


def times(first: float | None, second: float | None = 1.0, third: float | None = 1.0) -> dict[int, float | None]:
    return {1: first, 2: second, 3: third}


def tuned(**times_s: Any) -> tuple[Shop, list[Trial]]:
    shop = Shop(times_s={int(name[1:]): value for name, value in times_s.items()})
    trials = tune(shop.open, GRID, PROMPTS, PARAMS)
    assert all(contestant.is_closed for contestant in shop.opened)
    return shop, trials


@pytest.mark.parametrize(
    ("first_s", "second_s", "best"),
    [(1.0, 1.0, {}), (0.99, 0.5, {"width": 2}), (0.98, 1.0, {}), (0.5, 0.9, {"width": 1}), (2.0, 3.0, {})],
)
def test_the_default_stays_unless_another_setting_is_clearly_faster(
    first_s: float, second_s: float, best: dict[str, int]
) -> None:
    _, trials = tuned(w0=times(1.0), w1=times(first_s), w2=times(second_s))
    assert trials[0].settings == best
    assert sorted(str(trial.settings) for trial in trials) == sorted(map(str, GRID))


def test_every_setting_sees_every_prompt_in_turn_after_a_warm_up_that_does_not_count() -> None:
    shop, _ = tuned(w0=times(1.0), w1=times(1.0), w2=times(1.0))
    writes = [call for call in shop.calls if not call[0].startswith("forget")]
    assert writes == [(f"warm {width}", 1) for width in range(3)] + [
        (str(width), prompt) for prompt in (1, 2, 3) for width in range(3)
    ]
    places = [place for place, (name, _) in enumerate(shop.calls) if name.isdigit()]
    assert all(shop.calls[place - 1] == (f"forget {shop.calls[place][0]}", 0) for place in places)


def test_settings_that_fail_are_left_out_however_fast_they_were() -> None:
    shop, trials = tuned(w0=times(1.0), w1=times(0.1, None), w2=None)
    assert trials[0].settings == {}
    assert [trial.to_json() for trial in trials] == [
        {"settings": {}, "tokens_per_s": 10.0, "trouble": None},
        {"settings": {"width": 1}, "tokens_per_s": 0.0, "trouble": "it broke"},
        {"settings": {"width": 2}, "tokens_per_s": 0.0, "trouble": "there is no room for it"},
    ]
    assert ("1", 3) not in shop.calls, "who broke is not asked again"


def test_a_default_that_fails_gives_way_and_if_all_fail_the_first_trouble_is_told() -> None:
    _, trials = tuned(w0=None, w1=times(3.0), w2=times(None))
    assert trials[0].settings == {"width": 1}
    _, trials = tuned(w0=times(None), w1=None, w2=None)
    assert (trials[0].settings, trials[0].trouble) == ({}, "it broke")
