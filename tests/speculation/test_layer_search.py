"""The search for what to skip, on emulators whose truth is known."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from forerun.core.named_set import NamedSet
from forerun.core.sublayers import ATTENTION, MLP, NOTHING, SkipSet, every_other_layer, skippable
from forerun.speculation.layer_search import GatedSearch
from forerun.speculation.settling import LONGEST, STABLE, Settling
from forerun.speculation.skip_choice import Economy
from tests.speculation.best_observed import BestObserved
from tests.speculation.skip_emulator import (
    NUM_LAYERS,
    NUM_SKIPPED,
    Emulator,
    best_speed,
    cnn_dm,
    economy,
    gsm8k,
    random_set,
)

CONTEXT = 100
NUM_SEEDS = 12
OTHER_HARM = frozenset((layer, kind) for layer in range(17, 23) for kind in (ATTENTION, MLP))
EMULATORS = pytest.mark.parametrize("make", [cnn_dm, gsm8k])
Make = Callable[[int], Emulator]


def score(search: GatedSearch, emulator: Emulator, rng: np.random.Generator, until: int, num_rows: int = 8) -> None:
    """Four candidates a round at so many rows each, until so many evaluations are done."""
    while search.num_evaluations < until:
        for skipped in search.candidates(4, CONTEXT):
            search.record(skipped, emulator.score(skipped, num_rows, rng), num_rows)


def searched(seed: int, make: Make, until: int, num_skipped: int | None = None) -> tuple[GatedSearch, Emulator]:
    emulator, search = make(seed), GatedSearch(NUM_LAYERS, economy(), seed=seed, num_skipped=num_skipped)
    score(search, emulator, np.random.default_rng(1000 + seed), until)
    return search, emulator


@cache
def observed(make: Make, *, is_guided: bool) -> dict[int, float]:
    """The true chances of what the paper's rule has in use after 100, 200 and 600 evaluations."""
    chances: dict[int, list[float]] = {100: [], 200: [], 600: []}
    for seed in range(NUM_SEEDS):
        emulator, rule, rng = make(seed), BestObserved(seed, is_guided=is_guided), np.random.default_rng(1000 + seed)
        for number in range(1, 601):
            skipped = rule.candidate()
            rule.record(skipped, emulator.score(skipped, 32, rng), 32)
            if number in chances:
                chances[number].append(emulator.chance(rule.skipped))
    return {number: float(np.mean(some)) for number, some in chances.items()}


# What is found.


@EMULATORS
def test_after_200_evaluations_the_set_in_use_is_truly_as_good_as_the_best(make: Make) -> None:
    gaps = []
    for seed in range(NUM_SEEDS):
        search, emulator = searched(seed, make, 200, NUM_SKIPPED)
        assert len(search.skipped) == NUM_SKIPPED
        gaps.append(emulator.best(NUM_SKIPPED) - emulator.chance(search.skipped))
    assert np.mean(gaps) < 0.03
    assert max(gaps) < 0.12


def test_the_papers_rule_does_here_what_it_does_elsewhere() -> None:
    """So that the comparison is fair: 0.67 / 0.67 / 0.72 by luck alone and 0.86 / 0.89 / 0.91 with a linear model."""
    lucky, guided = observed(cnn_dm, is_guided=False), observed(cnn_dm, is_guided=True)
    assert list(lucky.values()) == pytest.approx([0.67, 0.67, 0.72], abs=0.08)
    assert list(guided.values()) == pytest.approx([0.86, 0.89, 0.91], abs=0.05)


@EMULATORS
def test_it_finds_in_100_evaluations_what_the_papers_rule_does_not_find_in_200(make: Make) -> None:
    found = np.mean([emulator.chance(search.skipped) for search, emulator in hundred(make)])
    assert found > observed(make, is_guided=True)[200] - 0.01
    assert found > observed(make, is_guided=False)[600] + 0.1


def hundred(make: Make) -> list[tuple[GatedSearch, Emulator]]:
    return [searched(seed, make, 100, NUM_SKIPPED) for seed in range(NUM_SEEDS)]


@EMULATORS
def test_with_a_free_number_of_skips_the_speed_is_within_three_per_cent_of_the_best(make: Make) -> None:
    shares = []
    for seed in range(NUM_SEEDS):
        search, emulator = searched(seed, make, 200)
        speed = economy().speed(emulator.chance(search.skipped), search.skipped, CONTEXT)
        shares.append(speed / best_speed(emulator, economy()))
    assert np.mean(shares) > 0.97
    assert min(shares) > 0.85


def test_what_it_believes_of_the_set_in_use_is_true() -> None:
    """Not what luck made of it: the best score seen would lie far above."""
    errors = []
    for seed in range(NUM_SEEDS):
        search, emulator = searched(seed, cnn_dm, 200)
        errors.append(search.chance() - emulator.chance(search.skipped))
    assert abs(np.mean(errors)) < 0.015
    assert np.std(errors) < 0.03


# What replaces what.


def search_with_rival(incumbent: tuple[int, int]) -> tuple[GatedSearch, SkipSet]:
    """A search in which two sets alike are known, one of them in use with such a record; and the other one."""
    sets = [frozenset(skippable(NUM_LAYERS)[20:40]), frozenset(skippable(NUM_LAYERS)[40:60])]
    known = [NamedSet(name=str(number), skipped=one) for number, one in enumerate(sets)]
    search = GatedSearch(NUM_LAYERS, economy(), known=known)
    (rival,) = set(sets) - {search.skipped}
    hits, rows = incumbent
    search.record(search.skipped, hits, rows)
    return search, rival


def test_a_few_lucky_hits_replace_nothing() -> None:
    search, rival = search_with_rival((300, 330))
    search.record(rival, 4, 4)
    search.record(NOTHING, 0, 64)  # time to judge
    assert search.skipped != rival


def test_a_better_set_replaces_the_one_in_use_once_it_was_seen_enough() -> None:
    search, rival = search_with_rival((250, 330))
    search.record(rival, 31, 31)
    search.record(NOTHING, 64, 64)
    assert search.skipped != rival, "31 rows are too few"
    for _ in range(16):
        search.record(rival, 4, 4)
    assert search.skipped == rival


def test_guesses_of_drafts_do_not_decide_between_sets() -> None:
    search, rival = search_with_rival((300, 330))
    for _ in range(20):
        search.record(rival, 16, 16, is_on_policy=True)
        search.record(NOTHING, 30, 32)
    assert search.skipped != rival


def test_the_start_set_is_scored_before_anything_replaces_it() -> None:
    emulator, rng = cnn_dm(0), np.random.default_rng(0)
    search = GatedSearch(NUM_LAYERS, economy())
    start, num_rows = search.skipped, 0
    seen: set[SkipSet] = set()
    while search.skipped == start:
        for skipped in search.candidates(2, CONTEXT):
            seen.add(skipped)
            num_rows += 4 * (skipped == start)
            search.record(skipped, emulator.score(skipped, 4, rng), 4)
    assert num_rows >= 32
    assert every_other_layer(NUM_LAYERS) in seen, "SWIFT's start set is one like all others"


def test_the_set_in_use_is_scored_again_and_again() -> None:
    emulator, rng = cnn_dm(1), np.random.default_rng(1)
    search = GatedSearch(NUM_LAYERS, economy(), seed=1)
    score(search, emulator, rng, 100)
    since = 0
    for _ in range(100):
        candidates = search.candidates(4, CONTEXT)
        assert len(set(candidates)) == 4
        since = 0 if search.skipped in candidates else since + 1
        assert since <= 3
        for skipped in candidates:
            search.record(skipped, emulator.score(skipped, 4, rng), 4)


def test_the_number_of_skips_varies() -> None:
    """Or the model could not tell what one more costs."""
    search, _ = searched(2, cnn_dm, 50)
    numbers = {len(skipped) for _ in range(50) for skipped in search.candidates(4, CONTEXT)}
    assert max(numbers) - min(numbers) > 15


# Whether to draft at all.


def test_drafting_begins_only_where_it_surely_pays() -> None:
    search = GatedSearch(NUM_LAYERS, economy())
    assert not search.is_worth_it(CONTEXT), "nothing is sure as yet"
    search.record(search.skipped, 95, 100)
    assert search.is_worth_it(CONTEXT)


@pytest.mark.parametrize("num_hits", [0, 30, 60])
def test_drafting_does_not_begin_where_guesses_are_wrong(num_hits: int) -> None:
    search = GatedSearch(NUM_LAYERS, economy())
    for _ in range(5):
        search.record(search.skipped, num_hits / 5, 20)
        assert not search.is_worth_it(CONTEXT)


def test_drafting_does_not_begin_where_a_draft_costs_nearly_a_pass() -> None:
    """Skipping saves nothing here, as where the passes wait for something other than weights."""
    machine = economy()
    flat = GatedSearch(NUM_LAYERS, without_savings(machine.costs.whole.step_s(1)))
    for _ in range(20):
        flat.record(flat.skipped, 32, 32)
    assert not flat.is_worth_it(CONTEXT)


def without_savings(whole_s: float) -> Economy:
    machine = economy()
    return replace(machine, costs=replace(machine.costs, attention_s=whole_s / 1600, mlp_s=whole_s / 1600))


def test_drafting_goes_on_while_it_is_expected_to_pay_and_then_ends() -> None:
    search = GatedSearch(NUM_LAYERS, economy())
    search.record(search.skipped, 190, 200)
    answers = []
    for _ in range(60):
        search.record(search.skipped, 5, 10)
        answers.append((search.is_worth_it(CONTEXT), search.speed(CONTEXT) > economy().plain_speed()))
    assert answers[0] == (True, True)
    assert answers[-1] == (False, False)
    began = GatedSearch(NUM_LAYERS, economy())
    chance = next(chance for chance in np.linspace(0.5, 1, 500) if pays_by(began, chance) > 1.01)
    for _ in range(20):
        began.record(began.skipped, 500 * chance, 500)
    assert not began.is_worth_it(CONTEXT), "it would not begin for one per cent"


def pays_by(search: GatedSearch, chance: float) -> float:
    return economy().speed(chance, search.skipped, CONTEXT) / economy().plain_speed()


def test_measured_overheads_are_reckoned_with() -> None:
    search = GatedSearch(NUM_LAYERS, economy())
    search.record(search.skipped, 97, 100)
    speed = search.speed(CONTEXT)
    assert search.is_worth_it(CONTEXT)
    search.reckon_with(round_s=0.02, expansion_s=0.01)
    assert search.speed(CONTEXT) < 0.7 * speed
    assert not search.is_worth_it(CONTEXT)


# Open, settled, open again.


def test_it_settles_and_then_wants_few_evaluations() -> None:
    num_settled, num_reopened = 0, 0
    for seed in range(NUM_SEEDS):
        search, _ = searched(seed, cnn_dm, 600)
        num_settled += not search.is_open
        num_reopened += search.num_reopened
        if not search.is_open:
            assert search.share == pytest.approx(0.15)
    assert num_settled >= NUM_SEEDS - 2
    assert num_reopened <= 1, "the text has not changed"


def test_a_choice_settles_when_nothing_gains_and_in_any_case_at_last() -> None:
    settling = Settling()
    settling.change(60, 1.5)
    assert not settling.has_settled(60 + STABLE - 1)
    settling.change(100, 1.001)
    assert settling.has_settled(60 + STABLE)
    assert not settling.has_settled(60 + STABLE + 1), "it did so before"
    settling.reopen(2000)
    for number in range(2000, 2000 + LONGEST, 50):
        settling.change(number, 1.5)
        assert not settling.has_settled(number)
    assert settling.has_settled(2000 + LONGEST)


def one_round(search: GatedSearch, emulator: Emulator, rng: np.random.Generator) -> None:
    """As in an engine: three tokens are drafted, and four candidates scored at four rows if the search wants it."""
    search.record(search.skipped, emulator.score(search.skipped, 3, rng), 3, is_on_policy=True)
    if rng.random() < search.share:
        for skipped in search.candidates(4, CONTEXT):
            search.record(skipped, emulator.score(skipped, 4, rng), 4)


def speed_in_use(search: GatedSearch, emulator: Emulator) -> float:
    return economy().speed(emulator.chance(search.skipped), search.skipped, CONTEXT)


def settle(search: GatedSearch, emulator: Emulator, rng: np.random.Generator) -> None:
    for number in range(2000):
        one_round(search, emulator, rng)
        if number >= 400 and not search.is_open:
            return
    raise AssertionError("it never settles")


def switch(search: GatedSearch, emulator: Emulator, rng: np.random.Generator, enough: float) -> tuple[int, int]:
    """Rounds after a switch to another text until the search opens again, and until it is as fast as is enough."""
    assert not search.is_open
    assert speed_in_use(search, emulator) < enough, "the switch hurts"
    reopened = 0
    for number in range(1, 1000):
        one_round(search, emulator, rng)
        if search.is_open and not reopened:
            reopened = number
        if reopened and speed_in_use(search, emulator) >= enough:
            return reopened, number
    raise AssertionError("it never recovers")


def test_another_text_opens_the_search_again_and_an_old_one_is_known_again() -> None:
    """Harm lies in the middle layers there and in the first ones here; nothing says that the text has changed."""
    reopened, forth, back = [], [], []
    for seed in (0, 1, 3, 6):
        here, there, rng = cnn_dm(seed), cnn_dm(seed + 50, OTHER_HARM), np.random.default_rng(seed)
        search = GatedSearch(NUM_LAYERS, economy(), seed=seed)
        settle(search, here, rng)
        enough = 0.9 * speed_in_use(search, here)
        for emulator, took in ((there, forth), (here, back)):
            opened, recovered = switch(search, emulator, rng, enough)
            reopened.append(opened)
            took.append(recovered)
            settle(search, emulator, rng)
        assert search.num_reopened >= 2
    assert max(reopened) < 60
    assert max(forth) < 600
    assert max(back) < 300
    assert 1.5 * sum(back) < sum(forth)


def test_a_request_begins_with_the_best_of_the_pool() -> None:
    search, emulator = searched(4, cnn_dm, 400)
    search.begin_request()
    assert search.share == 1.0
    first = search.candidates(4, CONTEXT)
    assert first[0] == search.skipped
    assert set(first) <= {named.skipped for named in search.known()}
    rng = np.random.default_rng(0)
    for _ in range(4):
        for skipped in search.candidates(2, CONTEXT):
            search.record(skipped, emulator.score(skipped, 4, rng), 4)
    assert search.share < 1.0


# What it hands on.


def test_a_later_search_begins_where_an_earlier_one_ended() -> None:
    earlier, emulator = searched(5, cnn_dm, 200)
    known = earlier.known()
    assert known[0].skipped == earlier.skipped
    assert len(known) <= POOL_SIZE
    later = GatedSearch(NUM_LAYERS, economy(), known=known)
    assert economy().speed(emulator.chance(later.skipped), later.skipped, CONTEXT) > 0.9 * best_speed(
        emulator, economy()
    )
    assert later.is_worth_it(CONTEXT)
    assert later.num_evaluations == 0


def test_a_set_of_which_nothing_but_its_name_is_known_may_begin() -> None:
    given = NamedSet(name="given", skipped=random_set(np.random.default_rng(0), 20))
    assert GatedSearch(NUM_LAYERS, economy(), known=[given]).skipped == given.skipped


def test_the_history_tells_how_the_search_went_and_stays_short() -> None:
    search, _ = searched(6, cnn_dm, 100)
    numbers = [point[0] for point in search.history]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 90
    assert search.history[-1][1:] == (search.chance(), len(search.skipped), search.speed(CONTEXT))
    for _ in range(3 * LONGEST_HISTORY):
        search.record(NOTHING, 32, 32)
    assert LONGEST_HISTORY // 4 < len(search.history) < LONGEST_HISTORY
    assert search.history[0][0] <= 1


# How it does it.


def test_it_neither_reads_nor_moves_any_other_generator() -> None:
    runs = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before = (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
        search, _ = searched(7, cnn_dm, 30)
        assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002
        runs.append((search.history, search.known(), search.candidates(8, CONTEXT)))
    assert runs[0] == runs[1]


def test_another_seed_tries_other_sets() -> None:
    tried: list[Sequence[SkipSet]] = []
    for seed in (1, 2):
        search = GatedSearch(NUM_LAYERS, economy(), seed=seed)
        search.record(search.skipped, 32, 32)
        search.record(every_other_layer(NUM_LAYERS), 10, 32)
        tried.append(search.candidates(8, CONTEXT))
    assert tried[0] != tried[1]


@pytest.mark.parametrize("num_layers", [3, 4, 6])
def test_small_models_are_searched_too(num_layers: int) -> None:
    search, rng = GatedSearch(num_layers, economy(num_layers)), np.random.default_rng(0)
    for _ in range(200):
        candidates = search.candidates(8, CONTEXT)
        assert len(candidates) == len(set(candidates)) <= 8
        for skipped in candidates:
            search.record(skipped, int(rng.binomial(4, 0.9 ** len(skipped))), 4)
    assert set(search.skipped) <= set(skippable(num_layers))
    assert search.chance() == pytest.approx(0.9 ** len(search.skipped), abs=0.1)


def test_nothing_asked_and_nothing_told_changes_nothing() -> None:
    search, _ = searched(8, cnn_dm, 20)
    before = (search.chance(), search.known(), search.history[:])
    assert search.candidates(0, CONTEXT) == []
    search.record(search.skipped, 0, 0)
    assert (search.chance(), search.known(), search.history) == before


def test_a_proposal_is_quick_with_eighty_layers() -> None:
    search, rng = GatedSearch(80, economy(80)), np.random.default_rng(0)
    proposals, records = [], []
    for _ in range(60):
        began = time.perf_counter()
        candidates = search.candidates(4, CONTEXT)
        proposals.append((time.perf_counter() - began) / 4)
        for skipped in candidates:
            began = time.perf_counter()
            search.record(skipped, int(rng.binomial(4, 0.8)), 4)
            records.append(time.perf_counter() - began)
    assert sorted(proposals)[30] < 1e-3, "60 us on a quiet core"
    assert sorted(records)[120] < 4e-4, "35 us"
