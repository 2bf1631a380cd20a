"""Short calls are timed in blocks that take turns; blocks that others disturbed do not count."""

from itertools import pairwise

import pytest
import torch

from forerun.bench.run.call_times import MIN_BLOCKS, Block, Spread, time_in_turn, undisturbed

CPU = torch.device("cpu")


def test_sides_take_turns_and_go_round_their_copies() -> None:
    log: list[str] = []
    sides = [[lambda name=name: log.append(name) for name in names] for names in (("a0", "a1"), ("b0", "b1"))]
    rounds = time_in_turn(sides, CPU, budget_s=0.0)
    assert len(rounds) == MIN_BLOCKS
    turns = [name[0] for name in log]
    num_switches = sum(left != right for left, right in pairwise(turns))
    assert num_switches == 1 + 2 * MIN_BLOCKS  # a to b in the warm-up, and between the blocks
    assert abs(log.count("a0") - log.count("a1")) <= 2


QUIET = (Block(call_s=1.0), Block(call_s=1.0, lost=0.01))
NOISY = (Block(call_s=9.0, lost=0.5), Block(call_s=1.0))


def test_disturbed_rounds_do_not_count() -> None:
    assert undisturbed([NOISY, *[QUIET] * MIN_BLOCKS]) == [QUIET] * MIN_BLOCKS


@pytest.mark.parametrize(("num_threads", "call_s"), [(1, 4.5), (2, 9.0)])
def test_with_too_few_quiet_rounds_the_least_disturbed_count_and_one_threads_loss_is_taken_off(
    monkeypatch: pytest.MonkeyPatch, num_threads: int, call_s: float
) -> None:
    worse = (Block(call_s=99.0, lost=0.9), Block(call_s=1.0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    chosen = undisturbed([worse, *[NOISY] * MIN_BLOCKS])
    assert chosen == [(Block(call_s=call_s, lost=0.5), Block(call_s=1.0))] * MIN_BLOCKS


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(median=3.0, low=2.0, high=4.0)
    assert Spread.of([7.0]) == Spread(median=7.0, low=7.0, high=7.0)
