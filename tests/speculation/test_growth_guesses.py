"""Children hung into a growth by what such guesses were worth."""

import math

import pytest

from forerun.speculation.growth import BestFirstGrowth, CalibratedGuesses

LOG_PROBS = [math.log(0.9), math.log(0.05), float("-inf")]


def growth() -> BestFirstGrowth:
    return BestFirstGrowth(7, horizon=8, draft_width=4)


def test_a_draft_that_is_always_wrong_loses_its_say() -> None:
    guesses = CalibratedGuesses()
    first = guesses.add(growth(), 0, [1, 2, 3], LOG_PROBS)
    assert first == pytest.approx(LOG_PROBS[:2]), "nothing was seen, and what is impossible is no guess"
    for _ in range(300):
        tree = growth()
        guesses.reroot({})
        guesses.add(tree, 0, [1, 2, 3], LOG_PROBS)
        guesses.told(tree.tree, [0], [2])
    last = growth()
    assert guesses.add(last, 0, [1, 2, 3], LOG_PROBS)[0] > math.log(0.8)
    assert last.tree.token_ids[1] == 2, "the guess that came true stands first"


def test_nodes_of_an_earlier_tree_teach_nothing() -> None:
    guesses = CalibratedGuesses()
    for _ in range(300):
        guesses.add(growth(), 0, [1, 2], LOG_PROBS[:2])
        guesses.reroot({})  # the tree has gone
        fresh = growth()
        fresh.add_children(0, [1, 2], LOG_PROBS[:2])
        guesses.told(fresh.tree, [0], [2])
    assert guesses.add(growth(), 0, [1, 2], LOG_PROBS[:2]) == pytest.approx(LOG_PROBS[:2])


def test_nodes_are_followed_to_their_new_numbers() -> None:
    guesses = CalibratedGuesses()
    old = growth()
    guesses.add(old, 0, [1], [math.log(0.9)])
    guesses.add(old, 1, [5], [math.log(0.9)])
    for _ in range(200):
        guesses.told(old.tree, [1], [6])
    places = old.reroot(1)
    guesses.reroot(places)
    before = guesses.add(growth(), 0, [5], [math.log(0.9)])
    for _ in range(200):
        guesses.told(old.tree, [0], [5])
    assert guesses.add(growth(), 0, [5], [math.log(0.9)])[0] > before[0]
