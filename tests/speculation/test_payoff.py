"""Drafting is given up where it does not pay, tried again now and then, and never interrupted where it does."""

import random

import pytest

from forerun.speculation.payoff import FIRST_ROUNDS, FIRST_STRETCH, LONGEST_STRETCH, TRIAL, Payoff, PayoffByTemperature


def play(payoff: Payoff, num_rounds: int, drafted_s: float, plain_s: float) -> list[bool]:
    """Whether each round was drafted, if rounds cost so many seconds per token (three tokens when drafted)."""
    kinds = []
    for _ in range(num_rounds):
        kinds.append(payoff.should_draft())
        if kinds[-1]:
            payoff.measure(3, 3 * drafted_s)
        else:
            payoff.measure(1, plain_s)
    return kinds


def test_a_draft_that_beats_the_bare_pass_is_never_interrupted() -> None:
    assert all(play(Payoff(pass_s=1.0), 2000, drafted_s=0.9, plain_s=5.0))


def test_one_round_that_other_load_held_up_decides_nothing() -> None:
    payoff = Payoff(pass_s=1.0)
    assert all(play(payoff, 20, drafted_s=0.8, plain_s=5.0))
    payoff.measure(3, 100.0)
    assert all(play(payoff, 20, drafted_s=0.8, plain_s=5.0))


def test_a_draft_slower_than_a_pass_but_faster_than_plain_rounds_is_kept_after_one_trial() -> None:
    kinds = play(Payoff(pass_s=1.0), 1000, drafted_s=1.5, plain_s=2.0)
    assert 0 < kinds.count(False) < 20
    assert all(kinds[100:])


def test_a_draft_that_does_not_pay_costs_a_few_rounds_in_hundreds() -> None:
    kinds = play(Payoff(pass_s=1.0), 4000, drafted_s=2.5, plain_s=1.1)
    assert all(kinds[:FIRST_ROUNDS])
    assert kinds[2000:].count(True) <= 40
    longest = max(len(run) for run in "".join("d" if kind else "p" for kind in kinds).split("d"))
    assert longest <= LONGEST_STRETCH, "it is tried again, since text changes"


def test_a_draft_that_comes_to_pay_is_taken_up_again() -> None:
    payoff = Payoff(pass_s=1.0)
    play(payoff, 600, drafted_s=2.5, plain_s=1.1)
    later = play(payoff, 2 * LONGEST_STRETCH, drafted_s=0.5, plain_s=1.1)
    assert all(later[-100:])


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_make_it_change_its_mind_for_long(seed: int) -> None:
    rng, payoff, num_drafted = random.Random(seed), Payoff(pass_s=1.0), 0
    for _ in range(4000):
        is_drafting = payoff.should_draft()
        num_drafted += is_drafting
        payoff.measure(3 if is_drafting else 1, (6.0 if is_drafting else 1.2) * rng.uniform(0.8, 1.6))
    assert num_drafted < 300


def plain_stretch(payoff: Payoff, at_once: int) -> int:
    """Plain rounds until drafting is tried again, told of so many at a time."""
    num_rounds = 0
    while not payoff.should_draft():
        payoff.measure(at_once, 1.1 * at_once, at_once)
        num_rounds += at_once
    return num_rounds


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_rounds_told_together_count_as_many(at_once: int) -> None:
    payoff = Payoff(pass_s=1.0)
    kinds = play(payoff, FIRST_ROUNDS, drafted_s=2.5, plain_s=1.1)
    assert all(kinds)
    assert TRIAL <= plain_stretch(payoff, at_once) < TRIAL + at_once
    for stretch in (FIRST_STRETCH, 2 * FIRST_STRETCH):
        assert all(play(payoff, TRIAL, drafted_s=2.5, plain_s=1.1))
        assert plain_stretch(payoff, at_once) == stretch


def test_plain_rounds_told_together_are_as_fast_as_their_time_over_their_tokens() -> None:
    """A draft at 1.5 s a token is kept against plain rounds of 2 s, however they are told, and not against 1.4 s."""
    for plain_s, is_kept in ((2.0, True), (1.4, False)):
        payoff = Payoff(pass_s=1.0)
        play(payoff, FIRST_ROUNDS, drafted_s=1.5, plain_s=plain_s)
        assert not payoff.should_draft()
        payoff.measure(TRIAL, TRIAL * plain_s, TRIAL)
        assert all(play(payoff, TRIAL, drafted_s=1.5, plain_s=plain_s))
        assert payoff.should_draft() == is_kept


def test_a_pass_that_was_measured_on_a_busy_machine_does_not_stand() -> None:
    payoff = Payoff(1.0)
    for _ in range(100):
        assert payoff.should_draft(), "drafting looks cheap beside such a pass"
        payoff.measure(1, 0.5)
    payoff.see_verification(0.2)
    payoff.measure(1, 0.5)
    assert not payoff.should_draft()


def test_a_patient_comparison_keeps_a_draft_that_pays_a_little() -> None:
    """A tenth more tokens per second is lost in the spread of a few rounds, and drafting would mostly rest."""
    shares = {}
    for patience in (1, 4):
        num_drafted = 0
        for seed in range(8):
            rng, payoff = random.Random(seed), Payoff(pass_s=1.0, patience=patience)
            for _ in range(600):
                is_drafting = payoff.should_draft()
                num_drafted += is_drafting
                num_tokens = rng.choice([1, 1, 1, 1, 1, 1, 2, 2, 2, 3]) if is_drafting else 1
                payoff.measure(num_tokens, 1.43 if is_drafting else 1.05)
        shares[patience] = num_drafted / (8 * 600)
    assert shares[4] > max(0.7, shares[1])


def test_what_does_not_pay_at_one_temperature_may_pay_at_another() -> None:
    payoffs = PayoffByTemperature(pass_s=1.0)
    play(payoffs.at(1.0), 600, drafted_s=2.5, plain_s=1.1)
    assert not payoffs.at(1.3).should_draft()
    assert all(play(payoffs.at(0.0), 600, drafted_s=0.9, plain_s=1.1))
    assert payoffs.at(0.5).should_draft()


def test_a_draft_that_rests_is_tried_when_it_is_asked_to_and_rests_again_if_it_still_does_not_pay() -> None:
    payoff = Payoff(1.0)
    for _ in range(FIRST_ROUNDS + TRIAL + FIRST_STRETCH // 2):
        payoff.measure(1, 2.0 if payoff.should_draft() else 1.0)
    assert not payoff.should_draft()
    payoff.try_again()
    drafted = 0
    while payoff.should_draft():
        payoff.measure(1, 2.0)
        drafted += 1
    assert drafted == TRIAL
