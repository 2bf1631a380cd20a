"""How many replicas there should be."""

from forerun.fleet.scaling import FEWER_AFTER_S, MORE_AFTER_S, Scaling


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_one_more_is_wanted_while_requests_wait_everywhere() -> None:
    clock = Clock()
    scaling = Scaling(1, 3, clock=clock)
    assert scaling.wanted({0: 2, 1: 3}, num_all=2) == 2
    clock.now_s = MORE_AFTER_S + 1
    assert scaling.wanted({0: 2, 1: 1}, num_all=2) == 2  # nothing waits on one of them
    clock.now_s += MORE_AFTER_S + 1
    assert scaling.wanted({0: 2, 1: 2}, num_all=2) == 3
    assert scaling.wanted({0: 2, 1: 2}, num_all=3) == 3  # one is being started
    assert scaling.wanted({0: 2, 1: 2, 2: 2}, num_all=3) == 3  # no more are allowed


def test_one_fewer_is_wanted_when_one_was_never_needed() -> None:
    clock = Clock()
    scaling = Scaling(1, 3, clock=clock)
    clock.now_s = FEWER_AFTER_S + 1
    assert scaling.wanted({0: 1, 1: 0}, num_all=2) == 2  # it was just needed
    clock.now_s += FEWER_AFTER_S + 1
    assert scaling.wanted({0: 0, 1: 0}, num_all=2) == 1
    clock.now_s += FEWER_AFTER_S + 1
    assert scaling.wanted({0: 0}, num_all=1) == 1
    clock.now_s += FEWER_AFTER_S + 1
    assert scaling.wanted({0: 0}, num_all=2) == 1  # the other one finds no room on any machine


def test_a_number_that_is_named_stays() -> None:
    clock = Clock()
    scaling = Scaling(2, None, clock=clock)
    clock.now_s = FEWER_AFTER_S + 1
    assert scaling.wanted({0: 9, 1: 9}, num_all=2) == scaling.wanted({0: 0, 1: 0}, num_all=2) == 2
