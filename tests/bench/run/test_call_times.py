"""Short calls are timed in blocks that take turns."""

from itertools import pairwise

import torch

from forerun_lab.bench.run.call_times import MIN_BLOCKS, time_in_turn

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
