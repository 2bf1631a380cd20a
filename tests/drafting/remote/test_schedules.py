"""Whatever befalls wires and drafters, the text is the target's own, no round waits long, and drafting comes back.

The real `ParallelDrafter` and the real `DrafterEnd`, over wires that lose, delay, double, reorder, garble, cut and
refuse frames, with drafters that stop, die and are replaced, between requests and in the middle of them.
"""

import logging
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.errors import VocabularyError
from forerun.core.steps import DrafterState
from forerun.decoding.host_loop import checked
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.messages import Setup
from forerun.drafting.remote.policy import RemotePolicy
from forerun.speculation.economy.waiting import FLOOR_S, STEP_FACTOR
from forerun.speculation.walk import Acceptance, walk
from tests.drafting.remote.fake import FakeGrower, Language
from tests.drafting.remote.fake_wires import FAULTS, Pace, Spend, World
from tests.marks import rest_soak

NUM_DEFAULT_CHUNKS, NUM_CHUNKS, SCHEDULES_PER_CHUNK = 1, 500, 2000  # chunks so long that all befalls each
GREEDY = SamplingParams()
SLOW_STEP_S = 0.3  # of the target, where the drafter is given time to be replaced
MAX_SLOW_ROUNDS = 40  # by then silence was noticed, a new drafter came up, and half of its guesses are right


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """One life of a target and its drafters."""

    number: int
    pace: Pace
    language: Language
    draft: DraftModel
    policy: RemotePolicy
    step_s: float
    horizon: int  # of the drafter's tree, in nodes
    prompts: list[list[int]]
    num_tokens: list[int]
    unrest: float  # chance per round that the drafter dies or stops for a while
    starves: bool
    ends_calmly: bool


@dataclass(slots=True)
class Side:
    """What `decoding.host_loop.checked` wants to know of a target."""

    root: int
    vocab_size: int


def random_schedule(rng: random.Random, number: int) -> Schedule:
    vocab_size = rng.randint(3, 12)
    language = Language(
        number, vocab_size=vocab_size, skill=rng.choice((0.0, 0.6, 0.9, 1.0)), num_guesses=rng.randint(1, 3)
    )
    draft = DraftModel(verify_width=rng.randint(1, 5), draft_width=rng.randint(1, 4))
    num_requests = rng.randint(1, 2)
    return Schedule(
        number=number,
        language=language,
        pace=Pace(
            expansion_s=rng.choice((0.0, 0.001, 0.001, 0.002, 0.003, 0.02)),
            latency_s=rng.choice((0.0, 0.0002, 0.0005, 0.01)),
            revival_s=rng.choice((0.0, 0.01, 0.1)),
            fault_rate=rng.choice((0.0, 0.02, 0.1, 0.3)),
        ),
        draft=draft,
        policy=RemotePolicy(
            sends_ahead=rng.random() < 0.7,
            looks_up=rng.random() < 0.3,
            max_repairs=rng.randint(1, 3),
            max_lateness=rng.choice((0.0, 1.0, 1e6)),
        ),
        step_s=rng.choice((0.002, 0.005, 0.01)),
        horizon=draft.verify_width * rng.randint(2, 4),
        prompts=[[rng.randrange(vocab_size) for _ in range(rng.randint(1, 6))] for _ in range(num_requests)],
        num_tokens=[rng.randint(6, 14) for _ in range(num_requests)],
        unrest=rng.choice((0.0, 0.0, 0.05, 0.2)),
        starves=rng.random() < 0.1,
        ends_calmly=rng.random() < 0.1,
    )


class Life:
    """The decode loop over one schedule, with everything that must hold asserted on the way."""

    def __init__(self, number: int, totals: Counter[str]) -> None:
        self.rng = random.Random(number)
        self.schedule = schedule = random_schedule(self.rng, number)
        self.totals, self.step_s = totals, schedule.step_s
        self.world = World(
            self.rng,
            schedule.pace,
            vocab_size=schedule.language.vocab_size,
            make_grower=self.make_grower,
        )
        self.world.starves = schedule.starves
        self.drafter = ParallelDrafter(
            self.world,
            schedule.draft,
            schedule.policy,
            target_vocab_size=schedule.language.vocab_size,
            check=lambda _: "not wanted" if self.rng.random() < schedule.pace.fault_rate / 3 else None,
            clock=self.world.clock,
        )
        self.longest_step_s = 0.0

    def make_grower(self, setup: Setup, spend: Spend) -> FakeGrower:
        schedule = self.schedule
        return FakeGrower(
            schedule.language,
            horizon=schedule.horizon,
            draft_width=setup.draft_width,
            expansion_s=schedule.pace.expansion_s,
            spend=spend,
        )

    def live(self) -> None:
        schedule = self.schedule
        if self.rng.random() < 0.7:
            with suppress(VocabularyError):  # from there on it decodes plainly
                self.drafter.wait_until_ready(timeout_s=0.2)
        for prompt, num_tokens in zip(schedule.prompts, schedule.num_tokens, strict=True):
            text = self.begin(prompt)
            num_rounds = 0
            while len(text) < len(prompt) + num_tokens:
                self.stir()
                self.play_round(text)
                num_rounds += 1
            assert num_rounds <= num_tokens
            assert text == schedule.language.text(prompt, len(text) - len(prompt)), "the text is the target's own"
            if schedule.ends_calmly and prompt is schedule.prompts[-1]:
                self.calm_down(text)
            self.drafter.end()
        self.drafter.close()

    def begin(self, prompt: Sequence[int]) -> list[int]:
        self.drafter.begin(prompt, GREEDY, None)
        return list(prompt)

    def stir(self) -> None:
        """Let something happen to the drafter now and then."""
        worker = self.world.worker
        if worker is None or self.rng.random() >= self.schedule.unrest:
            return
        if self.rng.random() < 0.5:
            self.totals["died"] += 1
            self.world.end_worker()
        else:
            self.totals["paused"] += 1
            worker.at = max(worker.at, self.world.clock.now) + self.rng.choice((0.01, 0.1, 0.6))

    def play_round(self, text: list[int]) -> Acceptance:
        language, drafter, clock = self.schedule.language, self.drafter, self.world.clock
        began = clock.now
        tree = drafter.propose()
        waited_s = clock.now - began
        deadline_s = max(FLOOR_S, STEP_FACTOR * self.longest_step_s)
        assert waited_s <= deadline_s + 1e-9, "no wait outlasts its deadline"
        side = Side(root=text[-1], vocab_size=language.vocab_size)
        assert checked(tree, side, drafter.verify_width) is tree, "an honest drafter proposes no nonsense"
        assert self.schedule.policy.looks_up or language.has_guessed(text, tree), "every guess is for its own place"
        acceptance = walk(tree, language.choices(text, tree))
        self.world.run(self.step_s)
        self.longest_step_s = max(self.longest_step_s, clock.now - began - waited_s)
        report = drafter.accept(acceptance)
        text += acceptance.tokens
        assert abs(report.wait_s - waited_s) < 1e-9
        self.count(report.was_hit, report.state, waited_s, len(acceptance.path))
        return acceptance

    def count(self, was_hit: bool, state: DrafterState, waited_s: float, num_accepted: int) -> None:
        self.totals["rounds"] += 1
        self.totals[state] += 1
        self.totals["hits" if was_hit else "misses"] += 1
        self.totals["waits"] += waited_s > 0
        self.totals["accepted"] += num_accepted

    def calm_down(self, text: list[int]) -> None:
        """Once nothing befalls the wires any more, guesses are accepted again."""
        schedule = self.schedule
        can_help = schedule.language.skill > 0.5 and self.drafter.verify_width > 1 and not schedule.policy.looks_up
        if not can_help or 2 * schedule.pace.latency_s > FLOOR_S:
            return  # no guess is right, or every answer may be late
        self.world.calm()
        self.step_s = SLOW_STEP_S
        self.totals["calmed"] += 1
        rounds = (self.play_round(text) for _ in range(MAX_SLOW_ROUNDS))
        assert any(acceptance.path for acceptance in rounds), "drafting comes back"


def play(number: int, totals: Counter[str]) -> None:
    life = Life(number, totals)
    try:
        life.live()
    except AssertionError as error:
        raise AssertionError(f"schedule {number}: {error}") from error
    totals.update(life.world.counts)


def check_chunk(chunk: int) -> None:
    totals: Counter[str] = Counter()
    for number in range(chunk * SCHEDULES_PER_CHUNK, (chunk + 1) * SCHEDULES_PER_CHUNK):
        play(number, totals)
    seen = {*FAULTS, *DrafterState, "hits", "misses", "waits", "accepted", "calmed", "died", "paused", "replaced"}
    assert seen - set(+totals) == set(), f"what never happened was not tested: {totals}"


@pytest.fixture(autouse=True)
def _in_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="forerun")  # thousands of drafters come and go


@pytest.mark.parametrize("chunk", rest_soak(range(NUM_CHUNKS), NUM_DEFAULT_CHUNKS))
def test_whatever_befalls_wires_and_drafters_the_text_is_the_targets(chunk: int) -> None:
    check_chunk(chunk)
