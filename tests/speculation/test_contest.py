"""Of several drafters the fastest drafts: it is found within a few rounds, and the others are tried again at times."""

import random
from collections import Counter

import pytest

from forerun.speculation.contest import Contest
from forerun.speculation.payoff import TEMPERATURE_CLASSES, TRIAL, class_of

NAMES = ("first", "second", "third")


def play(contest: Contest, num_rounds: int, token_s: dict[str, float], seed: int | None = None) -> list[str]:
    """Who drafted each round, if these are the seconds per token; with a seed, rounds of one to six tokens vary."""
    rng, who = random.Random(seed), []
    for _ in range(num_rounds):
        who.append(contest.current)
        num_tokens = 2 if seed is None else rng.randint(1, 6)
        noise = 1.0 if seed is None else rng.uniform(0.8, 1.4)
        seconds = 2 * token_s[who[-1]] * noise if seed is None else 3.5 * token_s[who[-1]] * noise
        contest.measure(num_tokens, seconds)
    return who


def test_the_fastest_is_found_within_the_first_two_dozen_rounds() -> None:
    who = play(Contest(NAMES), 40, {"first": 1.2, "second": 1.0, "third": 1.5})
    assert set(who[: 3 * TRIAL]) == set(NAMES)
    assert set(who[3 * TRIAL :]) == {"second"}


def test_one_that_is_much_slower_is_given_up_after_two_rounds() -> None:
    who = play(Contest(NAMES), 40, {"first": 1.0, "second": 9.0, "third": 1.5})
    assert who.count("second") == 2


def test_the_others_are_tried_again_in_ever_longer_intervals() -> None:
    contest = Contest(NAMES)
    who = play(contest, 4000, {"first": 1.0, "second": 1.5, "third": 1.5})
    assert contest.winner == "first"
    assert who.count("first") > 0.96 * len(who)
    assert set(who[1000:]) == set(NAMES), "texts change"


def test_one_that_becomes_faster_is_taken() -> None:
    contest = Contest(NAMES)
    play(contest, 300, {"first": 1.0, "second": 1.5, "third": 1.5})
    later = play(contest, 1500, {"first": 1.0, "second": 1.5, "third": 0.5})
    assert contest.winner == "third"
    assert later[-200:].count("third") > 180


@pytest.mark.parametrize("seed", range(6))
def test_noise_does_not_hide_a_difference_for_long(seed: int) -> None:
    who = Counter(play(Contest(NAMES), 1500, {"first": 1.0, "second": 1.4, "third": 1.4}, seed))
    assert who["first"] > 0.8 * 1500


def test_what_is_known_from_before_saves_the_trials() -> None:
    contest = Contest(NAMES, {"first": 1.5, "second": 1.5, "third": 1.0, "gone": 0.1})
    who = play(contest, 30, {"first": 1.5, "second": 1.5, "third": 1.0})
    assert set(who) == {"third"}
    assert contest.speeds().keys() == set(NAMES)


def test_a_drafter_that_is_new_since_then_is_tried() -> None:
    who = play(Contest(NAMES, {"first": 1.0, "second": 1.5}), 60, {"first": 1.0, "second": 1.5, "third": 0.5})
    assert who[-30:].count("third") >= 30 - TRIAL


def test_one_drafter_alone_needs_no_contest() -> None:
    assert set(play(Contest(("only",)), 1000, {"only": 1.0})) == {"only"}


def test_every_temperature_has_its_class() -> None:
    assert [class_of(temperature) for temperature in (0.0, 0.3, 0.99, 1.0, 1.7)] == [
        TEMPERATURE_CLASSES[place] for place in (0, 1, 1, 2, 2)
    ]
