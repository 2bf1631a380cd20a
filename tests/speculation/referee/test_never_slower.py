"""Played through on a virtual clock: no answer is much slower than plain decoding, and little is lost against the best
fixed arm, which is chosen with hindsight.

Times are measured with errors of up to 20 % and stalls of ten times. Figures are of what rounds really took.
"""

import pytest

from forerun.core.pace import Pace
from forerun.speculation.referee.referee import TRIALS
from tests.marks import in_turn, rest_slow
from tests.speculation.referee.market import FLAT, MIDDLE, STEEP, Answer, Chance, Market, Skill, always, totals

FIRST = 1.05  # promised for the first answers, over plain decoding
LATER = 1.02  # promised for later ones
SEEDS = rest_slow(range(8), 1)
PAIRS = ((0.1, 0.1), (0.4, 0.3), (0.7, 0.5), (0.5, 0.7), (0.85, 0.9))  # how often a draft and recycling are right
SHORT = [60] * 30
LONG = [1000] * 4
MACHINES = {"flat": FLAT, "middle": MIDDLE, "steep": STEEP}
PASS_S = 1.2e-3  # of a draft, a ninth of the target's


def skills(draft: Chance, recycling: Chance, lookup: Chance | None = None) -> dict[str, Skill]:
    return {
        "draft_model": Skill(chance=draft, expansion_s=PASS_S),
        "recycling": Skill(chance=recycling),
        "prompt_lookup": Skill(chance=lookup or always(0.1), proposal_s=2e-5),
    }


def written(market: Market, lengths: list[int]) -> list[Answer]:
    return [market.write(num_tokens) for num_tokens in lengths]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lengths", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("chance", [0.0, 0.3, 0.6])
def test_where_plain_decoding_is_the_fastest_no_answer_is_slower(chance: float, lengths: list[int], seed: int) -> None:
    answers = written(Market(STEEP, skills(always(chance), always(chance)), seed=seed), lengths)
    assert max(answer.over_plain for answer in answers[:TRIALS]) <= FIRST
    assert all(answer.over_plain <= LATER for answer in answers[TRIALS:])
    assert totals(answers) <= 1.012


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_draft_that_is_sure_and_always_wrong_cannot_fool_the_chooser(machine: str, seed: int) -> None:
    sure = {"draft_model": Skill(chance=always(0.05), expansion_s=PASS_S, claims=0.95),
            "recycling": Skill(chance=always(0.05), claims=0.95)}  # fmt: skip
    answers = written(Market(MACHINES[machine], sure, seed=seed), SHORT)
    assert max(answer.over_plain for answer in answers[:TRIALS]) <= FIRST
    assert max(answer.over_plain for answer in answers[TRIALS:]) <= LATER + 0.01


@pytest.mark.parametrize(("machine", "period"), in_turn(list(MACHINES), [60, 240, 600]))
def test_a_draft_that_turns_bad_loses_a_hundredth_or_two_of_an_answer(machine: str, period: int) -> None:
    """From one answer to the next, or in the middle of one, without notice and again and again."""
    answers = []
    for seed in range(3):
        turning = lambda place: 0.8 if place // period % 2 == 0 else 0.05  # noqa: E731
        answers += written(Market(MACHINES[machine], skills(turning, always(0.1)), seed=seed), [60] * 40)[TRIALS:]
    over = sorted(answer.over_plain for answer in answers)
    assert over[int(0.97 * len(over))] <= LATER
    assert over[-1] <= LATER + 0.02, "the times that the chooser knows are off by a hundredth"
    if machine != "steep":
        assert totals(answers) < 0.95


@pytest.mark.parametrize(("pair", "machine"), in_turn(PAIRS, list(MACHINES), 2))
def test_of_long_answers_little_is_lost_against_the_best_fixed_arm(machine: str, pair: tuple[float, float]) -> None:
    over_best = []
    for seed in range(3):
        market = Market(MACHINES[machine], skills(*map(always, pair)), seed=seed)
        market.write(1000)
        begin = market.place
        answers = written(market, [1000] * 3)
        assert max(answer.over_plain for answer in answers) <= LATER
        over_best.append(sum(answer.seconds for answer in answers) / market.best_fixed(begin, market.place)[2])
    assert sum(over_best) / len(over_best) <= 1.06
    assert max(over_best) <= 1.1


@pytest.mark.parametrize(("pair", "machine"), in_turn(PAIRS, list(MACHINES), 2))
def test_of_short_answers_more_is_lost_as_each_of_them_has_a_limit(machine: str, pair: tuple[float, float]) -> None:
    """What an answer may lose ends some that a dear drafter began badly, and would have won."""
    over_best = []
    over_plain = []
    for seed in range(3):
        market = Market(MACHINES[machine], skills(*map(always, pair)), seed=seed)
        written(market, [60] * 5)
        begin = market.place
        answers = written(market, [60] * 30)
        over_plain += [answer.over_plain for answer in answers]
        over_best.append(sum(answer.seconds for answer in answers) / market.best_fixed(begin, market.place)[2])
    assert sorted(over_plain)[int(0.98 * len(over_plain))] <= LATER
    assert max(over_plain) <= LATER + 0.02
    assert sum(over_best) / len(over_best) <= 1.15


@pytest.mark.parametrize(("chance", "over_plain"), [(0.6, 0.95), (0.8, 0.8)])
def test_a_draft_whose_pass_takes_a_third_of_the_targets_begins(chance: float, over_plain: float) -> None:
    """One pass may cost all that a short answer can lose, so a round of a single pass must be possible."""
    answers = []
    for seed in range(3):
        market = Market(FLAT, {"draft_model": Skill(chance=always(chance), expansion_s=3e-3)}, seed=seed)
        answers += written(market, SHORT)[1:]
    assert totals(answers) <= over_plain
    assert max(answer.over_plain for answer in answers) <= LATER


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_passes_that_were_measured_wrongly_are_put_right(factor: float, seed: int) -> None:
    """Wide ones, on a machine that was busy, or was not, just then."""
    believed = Pace(steps=tuple(
        (rows, max(seconds * (factor if rows > 1 else 1.0), MIDDLE.step_s(1))) for rows, seconds in MIDDLE.steps
    ))  # fmt: skip
    market = Market(MIDDLE, skills(always(0.1), always(0.7)), seed=seed, believed=believed)
    market.write(1000)
    answers = written(market, [1000] * 3)
    assert totals(answers) < 0.75 if factor < 1.0 else totals(answers) <= 1.01
