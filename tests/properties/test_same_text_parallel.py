"""The same text when the draft grows elsewhere: random models, parameters, widths, delays, lossy wires, dying drafters.

The real decode loop, target, `ParallelDrafter`, `DrafterEnd` and `DraftTree` over wires in virtual time, against a full
recomputation that shares no code with the package.
"""

import logging
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from forerun.core.config import SamplingParams
from forerun.core.steps import DrafterState
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.drafter import Drafter, DraftOutcome, DraftReport
from forerun.drafting.policies import RemotePolicy
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.messages import Setup
from forerun.engine.drafter_process import grow_with
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree
from tests.dense_reference import reference_text
from tests.drafting.remote.fake_wires import Pace, Spend, World
from tests.marks import parted, rest_soak
from tests.properties.test_same_text import Case, random_case
from tests.random_settings import edited
from tests.tiny import CAPACITY, decode_rounds, poison_freed_slots, tiny_runner
from tests.tiny_families import MIXED

NUMBERS = parted(200, 100)  # so many that all befalls each
TREE_ROWS = 256


class TimedTree:
    """A draft tree whose passes take virtual time."""

    def __init__(self, tree: DraftTree, pass_s: float, spend: Spend) -> None:
        self._tree = tree
        self._pass_s = pass_s
        self._spend = spend

    @property
    def tree(self) -> TokenTree:
        return self._tree.tree

    @property
    def is_rooted(self) -> bool:
        return self._tree.is_rooted

    def reset(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._tree.reset(prompt_ids, params, noise, owner)

    def prefill(self) -> bool:
        self._spend(self._pass_s)
        return self._tree.prefill()

    def expand(self) -> bool:
        self._spend(self._pass_s)
        return self._tree.expand()

    def advance(self, token_ids: Sequence[int]) -> bool:
        is_hit = self._tree.advance(token_ids)
        self.assert_books()
        return is_hit

    def assert_books(self) -> None:
        """Slots of committed text first and in order, then one row for each expanded node of the live tree."""
        own = self._tree
        runner = self._tree._runner
        rows = self._tree._rows._rows
        cache = runner.cache
        assert cache.committed_len == len(runner.cached_ids)
        assert runner.cached_ids == own.token_ids[: cache.committed_len]
        assert sorted(rows.values()) == list(range(cache.num_tree)), "live rows and expanded nodes differ"
        assert all(node == 0 or own.tree.parents[node] in rows for node in rows)


class TimedDrafter(Drafter):
    """Lets virtual time pass while the target verifies, and harms the drafter's process now and then."""

    def __init__(self, inner: ParallelDrafter, world: World, step_s: float, unrest: float) -> None:
        self._inner = inner
        self._world = world
        self._step_s = step_s
        self._unrest = unrest
        self.verify_width = inner.verify_width
        self.states: Counter[str] = Counter()

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._inner.begin(prompt_ids, params, noise, owner)

    def propose(self, budget: RowBudget) -> ProposedTree:
        worker = self._world.worker
        rng = self._world.rng
        if worker is not None and rng.random() < self._unrest:
            if rng.random() < 0.5:
                self._world.end_worker()
            else:
                worker.at = max(worker.at, self._world.clock.now) + rng.choice((0.01, 0.1, 0.6))
        return self._inner.propose(budget)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self._world.run(self._step_s * self._world.rng.uniform(0.5, 1.5))
        report = self._inner.told(outcome)
        if outcome.is_own:
            self.states[report.state] += 1
            self.states["hit" if report.was_hit else "miss"] += 1
        return report

    def end(self) -> None:
        self._inner.end()

    def close(self) -> None:
        self._inner.close()


def parallel_drafter(case: Case, rng: random.Random) -> TimedDrafter:
    pace = Pace(
        expansion_s=rng.choice((0.0005, 0.001, 0.003, 0.02)),
        latency_s=rng.choice((0.0, 0.0002, 0.005)),
        revival_s=rng.choice((0.0, 0.05)),
        fault_rate=rng.choice((0.0, 0.0, 0.05, 0.2)),
    )

    def make_grower(setup: Setup, spend: Spend) -> TimedTree:
        runner = tiny_runner(case.draft_spec, case.draft_weights, capacity=CAPACITY + TREE_ROWS)
        poison_freed_slots(runner)
        return TimedTree(grow_with(runner, setup, case.vocabulary), pace.expansion_s, spend)

    world = World(rng, pace, vocab_size=case.draft_spec.vocab_size, make_grower=make_grower)
    policy = RemotePolicy(
        sends_ahead=rng.random() < 0.7,
        looks_up=rng.random() < 0.3,
        calibrates=rng.random() < 0.5,
        max_repairs=rng.randint(1, 3),
        max_lateness=rng.choice((0.0, 1.0, 1e6)),
    )
    drafter = ParallelDrafter(
        world,
        case.drafter.config,
        policy,
        case.drafter.policies.tree,
        target_vocab_size=case.spec.vocab_size,
        check=lambda _: None,
        clock=world.clock,
    )
    drafter.wait_until_ready(0.2)
    return TimedDrafter(drafter, world, rng.choice((0.002, 0.005, 0.01)), rng.choice((0.0, 0.0, 0.1)))


def difference(case: Case, totals: Counter[str]) -> str | None:
    """Run one case; say what is wrong with its text."""
    rng = random.Random(f"parallel {case.number}")
    target = tiny_runner(case.spec, case.weights, exactness="exact" if case.number % 2 else "fast")
    poison_freed_slots(target)
    request = {"seed": case.seed, "num_tokens": case.num_tokens}
    expected = reference_text(case.spec, case.weights, case.prompt_ids, case.params, **request)
    drafter = parallel_drafter(case, rng)
    prediction = edited(rng, expected, case.spec.vocab_size) if rng.random() < 0.3 else []
    rounds = decode_rounds(target, drafter, case.prompt_ids, case.params, **request, prediction=prediction)
    text = [token for step in rounds for token in step.token_ids][: case.num_tokens]
    totals.update(drafter.states)
    totals["drafted"] += sum(step.stats.num_drafted for step in rounds)
    totals["accepted"] += sum(step.stats.num_accepted for step in rounds)
    return None if text == expected else f"case {case.number}: {text} instead of {expected}"


@pytest.mark.parametrize("family", MIXED)
@pytest.mark.parametrize("numbers", rest_soak([range(4), range(4, 40)], 1), ids=str)
def test_it_does_so_for_layers_with_a_state(family: str, numbers: range) -> None:
    totals: Counter[str] = Counter()
    assert [difference(random_case(number, family), totals) for number in numbers] == [None] * len(numbers)
    assert totals


def check_cases(numbers: range) -> tuple[list[str], Counter[str]]:
    totals: Counter[str] = Counter()
    found = [fault for number in numbers if (fault := difference(random_case(number), totals)) is not None]
    seen = {DrafterState.READY, DrafterState.LATE, DrafterState.DOWN, "hit", "miss", "drafted", "accepted"}
    assert seen - set(+totals) == set(), f"what never happened was not tested: {totals}"
    return found, totals


@pytest.fixture(autouse=True)
def _in_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="forerun")  # many drafters come and go


@pytest.mark.parametrize("numbers", rest_soak(NUMBERS, 1), ids=str)
def test_a_draft_that_grows_elsewhere_gives_the_text_of_a_full_recomputation(numbers: range) -> None:
    found, _ = check_cases(numbers)
    assert found == []
