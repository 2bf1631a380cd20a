"""Simulate decoding on a virtual clock, with real trees and the real protocol, recorded guesses and given pass times.

Tokens per round are simulated, not computed by a formula. The engine's own referee decides every round. The serial
round handles its tree as `DraftModelDrafter` does; the parallel round uses the engine's own `ParallelDrafter` and
`DrafterEnd`.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DrafterConfig, DraftModel, NoDrafter, Parallel
from forerun.core.errors import ConfigError
from forerun.core.pace import Pace
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.drafter import DraftOutcome
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import BEST, Policies, TreePolicy
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.messages import Setup
from forerun.engine.drafter_process import TREE_ROWS, guesses_ahead
from forerun.model.runner import PREFILL_ROWS
from forerun.speculation.referee.budget import DraftCosts, ProposedTree
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.referee.referee import Referee
from forerun.speculation.tree import TokenTree
from forerun_lab.planner.outcome import AnswerOutcome, Outcome, Tally
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.trace import AnswerTrace
from forerun_lab.planner.trace_grower import TraceGrower
from forerun_lab.planner.virtual_time import WIRE_S, VirtualClock, VirtualSupply

VOCAB_SIZE: Final = 1 << 30
CHOOSING: Final = 0.5  # share of a round's overhead before the drafter receives the verdict
SPREAD: Final = 0.5  # relative variation of a worker's overhead, so that the two processes do not synchronise
PARAMS: Final = SamplingParams()
DRAFT: Final = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The times of passes and rounds for one split of the units."""

    target: Pace
    draft: Pace | None = None
    serial_overhead_s: float = 0.0
    parallel_overhead_s: float = 0.0
    expansion_overhead_s: float = 0.0
    worker_expansion_overhead_s: float = 0.0
    wire_s: float = WIRE_S

    @classmethod
    def of(cls, profile: Profile, *, target_units: int, draft_units: int) -> "Costs":
        """The costs in a profile, with these numbers of units for target and draft.

        Raises:
            ConfigError: the profile has no times for one of them.
        """
        for role, paces, units in (("target", profile.target, target_units), ("draft", profile.draft, draft_units)):
            if units not in paces and (role == "target" or paces):
                raise ConfigError(
                    f"the profile has no times of the {role} on {units} {profile.unit}s, only on "
                    f"{', '.join(map(str, sorted(paces))) or 'none'}: choose among these, or make another profile"
                )
        return cls(
            target=profile.target[target_units],
            draft=profile.draft.get(draft_units),
            serial_overhead_s=profile.serial_overhead_s,
            parallel_overhead_s=profile.parallel_overhead_s,
            expansion_overhead_s=profile.expansion_overhead_s,
            worker_expansion_overhead_s=profile.worker_expansion_overhead_s,
        )

    @property
    def draft_pace(self) -> Pace:
        """The draft's pace.

        Raises:
            ConfigError: it is not known.
        """
        if self.draft is None:
            raise ConfigError("the profile has no times of the draft's passes: take one that has them")
        return self.draft

    def expansion_s(self, num_rows: int) -> float:
        """Seconds of a draft pass in the target's process, overhead included."""
        return self.draft_pace.step_s(num_rows) + self.expansion_overhead_s

    def worker_expansion_s(self, num_rows: int) -> float:
        """Seconds of a draft pass in another process, overhead included; with 0 rows, of re-rooting the tree."""
        return (self.draft_pace.step_s(num_rows) if num_rows else 0.0) + self.worker_expansion_overhead_s


def simulate(traces: Sequence[AnswerTrace], drafter: DrafterConfig, costs: Costs, policies: Policies = BEST) -> Outcome:
    """Simulate this drafter on the answers of these traces, one after another."""
    match drafter:
        case NoDrafter():
            return Outcome(answers=tuple(plain_answer(trace, costs) for trace in traces))
        case DraftModel():
            serial = SerialSimulation(drafter, costs, policies.tree)
            return Outcome(answers=tuple(serial.play(trace) for trace in traces))
        case Parallel():
            parallel = ParallelSimulation(drafter, costs, policies)
            return Outcome(answers=tuple(parallel.play(trace) for trace in traces))
        case _:
            raise ConfigError(f"{type(drafter).__name__} has no draft model: there is nothing to plan or divide")


def plain_answer(trace: AnswerTrace, costs: Costs) -> AnswerOutcome:
    """The outcome of an answer without a drafter."""
    num_tokens = len(trace.token_ids)
    return AnswerOutcome(
        num_tokens=num_tokens,
        num_rounds=num_tokens,
        decode_s=num_tokens * (costs.target.step_s(1) + costs.serial_overhead_s),
        num_rows=num_tokens,
        pass_s=num_tokens * costs.target.step_s(1),
    )


class SerialSimulation:
    """Rounds of `DraftModelDrafter`; all answers share one drafter, because it learns."""

    def __init__(self, config: DraftModel, costs: Costs, policy: TreePolicy) -> None:
        self._config = config
        self._costs = costs
        self._clock = VirtualClock()
        self._guessed = GuessedTree(
            policy,
            verify_width=config.verify_width,
            draft_width=config.draft_width,
            horizon=config.verify_width,
            calibrates=config.adaptive,
        )
        self._grower = TraceGrower(
            self._guessed,
            max_rows=serial_rows(config),
            spend=lambda num_rows: self._clock.spend(costs.expansion_s(num_rows)),
        )
        self._referee = Referee(
            {DRAFT: config.verify_width},
            RoundCosts(costs.target) if config.adaptive else None,
            own={DRAFT: DraftCosts(expansion=costs.draft_pace)},
        )

    def play(self, trace: AnswerTrace) -> AnswerOutcome:
        grower = self._grower
        clock = self._clock
        tally = Tally(trace)
        grower.expect(trace, tally.outcome)
        grower.reset(trace.prompt_ids, PARAMS, None)
        self._referee.start_answer(PARAMS.temperature)
        while grower.prefill():
            pass
        began = clock.now
        while tally.num_left:
            self._play_round(tally)
        tally.outcome.decode_s = clock.now - began
        return tally.outcome

    def _play_round(self, tally: Tally) -> None:
        clock = self._clock
        referee = self._referee
        overhead_s = self._costs.serial_overhead_s
        if referee.turn.watched is not None:
            began = clock.now
            referee.watch(self._propose(), clock.now - began)
        began = clock.now
        drafts = referee.turn.drafter is not None
        tree = referee.cut(self._propose()) if drafts else TokenTree(self._guessed.tree.token_ids[0])
        proposed = clock.now
        pass_s = self._costs.target.step_s(len(tree))
        acceptance = tally.verify(tree, pass_s)
        clock.spend(pass_s + CHOOSING * overhead_s)
        tally.add(acceptance, is_hit=self._grower.advance(acceptance.tokens))
        referee.measure(
            num_rows=len(tree),
            token_ids=acceptance.tokens,
            proposal_s=proposed - began,
            round_s=clock.now - proposed,
        )
        clock.spend((1.0 - CHOOSING) * overhead_s)

    def _propose(self) -> ProposedTree:
        budget = self._referee.budget(DRAFT)
        while self._grower.prefill():  # read text that was committed in rounds without an expansion
            pass
        for _ in range(self._config.depth):
            if not self._grower.expand(budget):
                break
        return self._guessed.proposal()


class ParallelSimulation:
    """Rounds of `ParallelDrafter` with a worker in virtual time."""

    def __init__(self, config: Parallel, costs: Costs, policies: Policies) -> None:
        self._costs = costs
        self._clock = VirtualClock()
        self._rng = random.Random(0)
        self._supply = VirtualSupply(self._clock, self._make_grower, wire_s=costs.wire_s)
        self._drafter = ParallelDrafter(
            self._supply,
            config.draft,
            policies.remote,
            policies.tree,
            target_vocab_size=VOCAB_SIZE,
            check=lambda _: None,
            clock=self._clock,
        )
        self._referee = Referee(
            {DRAFT: config.draft.verify_width},
            RoundCosts(costs.target) if config.draft.adaptive else None,
            drafts_always=True,
        )
        self._drafter.wait_until_ready(1.0)
        self._supply.run(0.01)  # let the setup arrive, so that there is a grower

    def play(self, trace: AnswerTrace) -> AnswerOutcome:
        clock = self._clock
        tally = Tally(trace)
        self._grower.expect(trace, tally.outcome)
        self._drafter.begin(trace.prompt_ids, PARAMS, None)
        self._referee.start_answer(PARAMS.temperature)
        self._supply.run(prefill_s(self._costs.target, len(trace.prompt_ids) - 1))
        began = clock.now
        overhead_s = self._costs.parallel_overhead_s
        while tally.num_left:
            asked_at = clock.now
            tree = self._referee.cut(self._drafter.propose(self._referee.budget(DRAFT)))
            proposed_at = clock.now
            tally.wait(clock.now - asked_at, is_answered=self._drafter.is_answered)
            pass_s = self._costs.target.step_s(len(tree))
            acceptance = tally.verify(tree, pass_s)
            self._supply.run(pass_s + CHOOSING * overhead_s)
            report = self._drafter.told(DraftOutcome(tokens=acceptance.tokens, path=acceptance.path, is_own=True))
            self._referee.measure(
                num_rows=len(tree),
                token_ids=acceptance.tokens,
                proposal_s=proposed_at - asked_at,
                round_s=clock.now - proposed_at,
            )
            tally.add(acceptance, is_hit=report.was_hit)
            self._supply.run((1.0 - CHOOSING) * overhead_s)
        self._drafter.end()
        tally.outcome.decode_s = clock.now - began
        return tally.outcome

    def _spend(self, num_rows: int) -> float:
        spread_s = SPREAD * self._costs.worker_expansion_overhead_s
        return self._clock.spend(self._costs.worker_expansion_s(num_rows) + self._rng.uniform(-spread_s, spread_s))

    def _make_grower(self, setup: Setup) -> TraceGrower:
        """Make a grower, as the drafter's process does."""
        self._grower = TraceGrower(guesses_ahead(setup), max_rows=TREE_ROWS, spend=self._spend, is_remote=True)
        return self._grower


def prefill_s(pace: Pace, num_rows: int) -> float:
    """Seconds of the passes that read a prompt."""
    whole, rest = divmod(num_rows, PREFILL_ROWS)
    return whole * pace.step_s(PREFILL_ROWS) + (pace.step_s(rest) if rest else 0.0)
