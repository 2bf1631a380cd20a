"""Several drafters for one target: each round is drafted by the one with the most tokens per second, or by none."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.backends.rounds import RoundPlan
from forerun.core.config import SamplingParams
from forerun.core.pace import Pace
from forerun.core.steps import PLAIN
from forerun.drafting.drafter import Drafter, DraftReport, Measure
from forerun.model.inputs import ForwardInput
from forerun.model.measure import widths_up_to
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import TopK
from forerun.speculation.economy.choice import LEARNING, NOTHING_SAVED, TOGETHER, Chooser, Speeds
from forerun.speculation.economy.costs import FEWEST, RoundCosts
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

PLAIN_REPORT: Final = DraftReport(drafted_by=PLAIN)


class AutomaticDrafter(Drafter):
    """Lets its `Chooser` decide in every round which drafter proposes, if any, and which one is watched, if any.

    The other drafters only store the new tokens. They run them through their model before their next proposal.

    Args:
        drafters: by name, the one expected to be fastest first; each implements `note`.
        known: their speeds from an earlier start, in tokens in the time of a plain round.
        saved_s: seconds left for watching each of them at the end of that earlier start.
    """

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        known: Speeds | None = None,
        saved_s: Mapping[str, float] = NOTHING_SAVED,
    ) -> None:
        self.drafters = drafters
        self._known = known
        self._saved_s = saved_s
        self.verify_width = max(drafter.verify_width for drafter in drafters.values())
        self.adds_rows = any(drafter.adds_rows for drafter in drafters.values())
        tapped = {drafter.taps for drafter in drafters.values() if drafter.taps}
        assert len(tapped) <= 1, f"drafters that need other layers' features: {tapped}"
        self.taps = self._taps = next(iter(tapped), ())
        self._num_rounds = 0
        free = RoundCosts(Pace(steps=((self.verify_width, 1.0),)))  # until passes are measured
        free.measure(1, 1.0, int(FEWEST))  # so that the rounds of warming up are drafted
        self._choose_by(free, known)
        self._current: Drafter | None = None
        self._untold = list[int]()  # tokens not yet passed on, one per plain round
        self._untold_s = 0.0  # seconds of these rounds
        self._blind = set[str]()  # drafters that need features, but lack those of this prompt

    @property
    def round_plan(self) -> RoundPlan | None:
        return next(iter(self.drafters.values())).round_plan if len(self.drafters) == 1 else None

    def each_alone(self) -> Mapping[str, "AutomaticDrafter"]:
        """For each of several drafters, by name, one that uses only it, with the measured speeds and costs."""
        return {name: self._alone(name) for name in self.drafters} if len(self.drafters) > 1 else {}

    def _alone(self, name: str) -> "AutomaticDrafter":
        single = AutomaticDrafter({name: self.drafters[name]})
        known = {kind: {name: speeds[name]} for kind, speeds in self.chooser.speeds().items() if name in speeds}
        single._choose_by(self.chooser.costs, known)
        return single

    def adapt(self, measure: Measure, costs: RoundCosts | None = None) -> None:
        costs = costs or RoundCosts(measure(widths_up_to(self.verify_width)))
        for drafter in self.drafters.values():
            drafter.adapt(measure, costs)
        self._choose_by(costs, self._known)  # warm-up times are not representative, so they are discarded

    def change_owner(self, owner: str) -> None:
        for drafter in self.drafters.values():
            drafter.change_owner(owner)

    def forget(self) -> None:
        for drafter in self.drafters.values():
            drafter.forget()

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._root = prompt_ids[-1]
        self._untold = []
        self._untold_s = 0.0
        self._blind = set()
        for drafter in self.drafters.values():
            drafter.begin(prompt_ids, params, noise)
        self.chooser.begin(params.temperature)
        self._begun: float | None = perf_counter()
        self._num_prompt = len(prompt_ids)
        readers = {name: drafter for name, drafter in self.drafters.items() if self.chooser.may_read(name)}
        self._readers = list(readers.values())
        self._blind = {name for name, drafter in self.drafters.items() if drafter.taps and name not in readers}
        self.taps = () if self._blind else self._taps

    def prefill(self) -> bool:
        return any(reader.prefill() for reader in self._readers)

    def propose(self) -> TokenTree:
        if self._begun is not None:
            most_s = self._num_prompt * self.chooser.costs.plain_s  # more is a pause of the caller
            self.chooser.read_prompt(min(perf_counter() - self._begun, most_s))
            self._begun = None
        turn = self.chooser.turn
        costs = self.chooser.costs
        if turn.watched is not None and not self._untold:
            began = perf_counter()
            costs.allowed_rows = len(costs.pass_s)
            guess = caught_up(self.drafters[turn.watched]).propose()
            self.chooser.watch(guess, perf_counter() - began)
        self._began = perf_counter()
        costs.allowed_rows = turn.most_rows
        self._current = None if turn.drafter is None else self.drafters[turn.drafter]
        tree = TokenTree(self._root) if self._current is None else caught_up(self._current).propose()
        if len(tree) > (most_rows := self.chooser.rows_of(tree)):
            tree = tree.select(tree.best(most_rows))
        self._num_rounds += 1
        self.num_successors = 0 if self._current is None else self._current.num_successors
        if not self.num_successors and self._num_rounds % LEARNING == 0:
            self.num_successors = max(drafter.num_successors for drafter in self.drafters.values())
        self._num_rows = len(tree)
        self._proposed = perf_counter()
        return tree

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        return self._current.extend(inputs) if self._current is not None and self._current.adds_rows else inputs

    def observe(self, logits_EV: Tensor) -> None:
        assert self._current is not None, "no drafter added rows"
        self._current.observe(logits_EV)

    def observe_successors(self, tree: TokenTree, successors: TopK) -> None:
        for drafter in self.drafters.values():
            drafter.observe_successors(tree, successors)

    def read_features(self, place: int, features: Tensor) -> None:
        for drafter in self._readers:
            drafter.read_features(place, features)

    def observe_features(self, place: int, features: Tensor) -> None:
        for name, drafter in self.drafters.items():
            if name not in self._blind:
                drafter.observe_features(place, features)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._root = acceptance.bonus_token
        name = self.chooser.turn.drafter
        if self._current is None:
            self._accept_plain(acceptance)
            return DraftReport() if len(self.drafters) == 1 else PLAIN_REPORT
        report = self._current.accept(acceptance)
        for drafter in self.drafters.values():
            if drafter is not self._current:
                drafter.note(acceptance)
        self.chooser.measure(
            num_rows=self._num_rows,
            token_ids=acceptance.tokens,
            proposal_s=self._proposed - self._began,
            round_s=perf_counter() - self._proposed,
        )
        if len(self.drafters) == 1:
            return report
        return replace(report, drafted_by=PLAIN if name is None or self._num_rows == 1 else name)

    def _accept_plain(self, acceptance: Acceptance) -> None:
        self._untold += acceptance.tokens
        self._untold_s += perf_counter() - self._proposed
        if len(self._untold) >= TOGETHER or self.num_successors:
            self._tell()

    def _tell(self) -> None:
        """Pass the tokens of the plain rounds since the last call to all drafters."""
        if not self._untold:
            return
        token_ids = tuple(self._untold)
        seconds = self._untold_s
        self._untold = []
        self._untold_s = 0.0
        for drafter in self.drafters.values():
            drafter.note(Acceptance(path=(), tokens=token_ids))
        num_rounds = len(token_ids)
        self.chooser.measure(
            num_rows=1, token_ids=token_ids, proposal_s=0.0, round_s=seconds / num_rounds, num_rounds=num_rounds
        )

    def note(self, acceptance: Acceptance) -> None:
        self._tell()
        self._root = acceptance.bonus_token
        for drafter in self.drafters.values():
            drafter.note(acceptance)
        self.chooser.follow(acceptance.tokens)

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        return max(drafter.num_unknown(token_ids) for drafter in self.drafters.values())

    def state(self) -> bytes:
        return next((state for drafter in self.drafters.values() if (state := drafter.state())), b"")

    def restore(self, state: bytes) -> bool:
        return any(drafter.restore(state) for drafter in self.drafters.values())

    def end(self) -> None:
        self._tell()
        for drafter in self.drafters.values():
            drafter.end()

    def close(self) -> None:
        for drafter in self.drafters.values():
            drafter.close()

    def _choose_by(self, costs: RoundCosts, known: Speeds | None) -> None:
        self.chooser = Chooser(tuple(self.drafters), costs, known, self._reading_s, self._saved_s)

    def _reading_s(self, name: str) -> float:
        return inf if name in self._blind else self.drafters[name].reading_s


def caught_up(drafter: Drafter) -> Drafter:
    """The drafter, after it has prefilled all text that it lacks."""
    while drafter.prefill():
        pass
    return drafter
