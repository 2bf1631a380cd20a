"""Simulate decoding on a virtual clock, with real trees and the real protocol, recorded guesses and given pass times.

Tokens per round are simulated, not computed by a formula. The serial round handles its tree as `DraftModelDrafter` and
the decode loop do; the parallel round uses the engine's own `ParallelDrafter` and `DrafterEnd`.
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
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import BEST, Policies
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.messages import Setup
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.drafter_process import TREE_ROWS, guesses_ahead
from forerun.model.runner import PREFILL_ROWS
from forerun.speculation.economy.choice import Chooser
from forerun.speculation.economy.widths import WidthRule
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
        self._chooser: Chooser | None = None  # None: every round drafts
        if config.adaptive:
            rule = self._guessed.rule = WidthRule(costs.target, costs.draft_pace)
            self._chooser = Chooser(("draft_model",), rule.costs)

    def play(self, trace: AnswerTrace) -> AnswerOutcome:
        grower = self._grower
        clock = self._clock
        tally = Tally(trace)
        grower.expect(trace, tally.outcome)
        grower.begin(trace.prompt_ids, PARAMS, None)
        if self._chooser is not None:
            self._chooser.begin(PARAMS.temperature)
        while grower.prefill():
            pass
        began = clock.now
        while tally.num_left:
            self._play_round(tally)
        tally.outcome.decode_s = clock.now - began
        return tally.outcome

    def _play_round(self, tally: Tally) -> None:
        clock = self._clock
        chooser = self._chooser
        overhead_s = self._costs.serial_overhead_s
        if chooser is not None and chooser.turn.watched is not None:
            began = clock.now
            chooser.watch(self._propose(self._config.verify_width), clock.now - began)
        began = clock.now
        tree = self._propose(self._config.verify_width if chooser is None else chooser.turn.most_rows)
        proposed = clock.now
        pass_s = self._costs.target.step_s(len(tree))
        acceptance = tally.verify(tree, pass_s)
        clock.spend(pass_s + CHOOSING * overhead_s)
        tally.add(acceptance, is_hit=self._grower.advance(acceptance.tokens))
        if chooser is not None and self._guessed.rule is not None:
            if chooser.turn.drafter is not None:
                self._guessed.rule.end_round(len(acceptance.path))
            chooser.measure(
                num_rows=len(tree),
                token_ids=acceptance.tokens,
                proposal_s=proposed - began,
                round_s=clock.now - proposed,
            )
        clock.spend((1.0 - CHOOSING) * overhead_s)

    def _propose(self, most_rows: int) -> TokenTree:
        """A tree of at most `most_rows` rows; with 1, only the root, without a draft pass."""
        if most_rows > 1:
            if (rule := self._guessed.rule) is not None:
                rule.begin_round()
                rule.costs.allowed_rows = most_rows
            self._grow()
            return self._guessed.proposal()
        return TokenTree(self._guessed.tree.token_ids[0])

    def _grow(self) -> None:
        while self._grower.prefill():  # read text that was committed in rounds without an expansion
            pass
        for _ in range(self._config.depth):
            if not self._grower.expand():
                break


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
        self._drafter.adapt(lambda widths, *, budget_s=0.0: costs.target)
        self._drafter.wait_until_ready(1.0)
        self._supply.run(0.01)  # let the setup arrive, so that there is a grower

    def play(self, trace: AnswerTrace) -> AnswerOutcome:
        clock = self._clock
        tally = Tally(trace)
        self._grower.expect(trace, tally.outcome)
        self._drafter.begin(trace.prompt_ids, PARAMS, None)
        self._supply.run(prefill_s(self._costs.target, len(trace.prompt_ids) - 1))
        began = clock.now
        overhead_s = self._costs.parallel_overhead_s
        while tally.num_left:
            asked_at = clock.now
            tree = self._drafter.propose()
            tally.wait(clock.now - asked_at, is_answered=self._drafter.is_answered)
            pass_s = self._costs.target.step_s(len(tree))
            acceptance = tally.verify(tree, pass_s)
            self._supply.run(pass_s + CHOOSING * overhead_s)
            report = self._drafter.accept(acceptance)
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
