"""The drafters of an engine at work: the referee names who proposes, and all of them are told what was written."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Final, TypeVar

from torch import Tensor

from forerun.backends.device_rounds import RoundPlan
from forerun.core.config import SamplingParams
from forerun.core.steps import PLAIN, DrafterState, SkipReport
from forerun.decoding.decoder import Request
from forerun.drafting.drafter import (
    NO_NEWS,
    PLAIN_PLAN,
    Drafter,
    DraftOutcome,
    DraftReport,
    HasCosts,
    HasVocabulary,
    KeepsState,
    Measure,
    PlaysOnDevice,
    ReadsFeatures,
    ReadsScores,
    ReadsText,
    RidesAlong,
    RunsElsewhere,
    SearchesFirst,
)
from forerun.drafting.predicted import PREDICTED, Prediction
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import widths_up_to
from forerun.sampling.sample import TopK
from forerun.speculation.referee.budget import DraftCosts, ProposedTree
from forerun.speculation.referee.costs import RoundCosts
from forerun.speculation.referee.referee import NOTHING_SAVED, Referee, Speeds
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance

logger = logging.getLogger(__name__)
T = TypeVar("T")

LEARNING: Final = 8  # drafters learn from one plain round in this many: 80 us each are 2 % of a small model's round
TOGETHER: Final = 8  # plain rounds are told in one call: a call per round would slow small models
NOBODY: Final[Mapping[str, Drafter]] = {}
DOWN: Final = DraftReport(state=DrafterState.DOWN)
PLAIN_REPORT: Final = DraftReport(drafted_by=PLAIN)
# Every kind of error: the text does not need the drafter, whatever is wrong with its files, its code or the memory.
FAULTS: tuple[type[Exception], ...] = (Exception,)


class Drafters:
    """Zero or more drafters of one target. With none, every round is plain.

    Drafters that do not draft only store the new tokens; they run them through their model before their next proposal.

    If a drafter raises an error, it is left out until the text ends, and the text goes on. The next text tries it again
    with empty caches, because the cause may have been a lack of memory. Only the first error is a warning.

    Args:
        held: by name, the one expected to be fastest first.
        is_adaptive: draft only where it pays, by measured costs; otherwise the first one drafts in every round.
        known: their speeds from an earlier start, in tokens in the time of a plain round.
        saved_s: seconds left for watching each of them at the end of that earlier start.
    """

    def __init__(
        self,
        held: Mapping[str, Drafter] = NOBODY,
        *,
        is_adaptive: bool = False,
        known: Speeds | None = None,
        saved_s: Mapping[str, float] = NOTHING_SAVED,
    ) -> None:
        self.held = held
        self.verify_width = max((drafter.verify_width for drafter in held.values()), default=1)
        self._is_adaptive = is_adaptive
        self._known = known
        self._saved_s = saved_s
        self._scores = {name: drafter for name, drafter in held.items() if isinstance(drafter, ReadsScores)}
        self._features = {name: drafter for name, drafter in held.items() if isinstance(drafter, ReadsFeatures)}
        tapped = {drafter.taps for drafter in self._features.values()}
        assert len(tapped) <= 1, f"drafters that need other layers' features: {tapped}"
        self.taps = self._taps = next(iter(tapped), ())
        riders = [(name, drafter) for name, drafter in held.items() if isinstance(drafter, RidesAlong)]
        assert len(riders) <= 1, f"rows of several drafters in one pass: {[name for name, _ in riders]}"
        self._rider = riders[0] if riders else None
        self._searchers = [drafter for drafter in held.values() if isinstance(drafter, SearchesFirst)]
        self.adds_rows = False
        self.num_successors = 0  # the target's likeliest next tokens that are needed of each row of this round
        self.referee = Referee({name: drafter.verify_width for name, drafter in held.items()})
        self._prediction = Prediction(self.verify_width)
        self._expects = False  # there is a prediction, or a grammar
        self._drop_rows: Callable[[], None] = lambda: None
        self._down = set[str]()  # drafters that raised an error in this text
        self._has_warned = False
        self._num_rounds = 0
        self._rider_spent_s = 0.0  # before this round
        self._current: str | None = None  # the drafter of this round
        self._is_predicted = False  # this round verifies predicted text
        self._untold = list[int]()  # tokens not yet passed on, one per plain round
        self._untold_s = 0.0  # seconds of these rounds
        self._blind = set[str]()  # drafters that need features, but lack those of this prompt

    def alone(self, name: str) -> "Drafters":
        """One of these drafters, with the measured speeds and costs."""
        single = Drafters({name: self.held[name]}, is_adaptive=self._is_adaptive)
        single.referee = self.referee.alone(name, single._reading_s)
        return single

    @property
    def round_plan(self) -> RoundPlan | None:
        """The data a device needs to run all rounds without the host; None: it cannot."""
        if not self.held:
            return PLAIN_PLAN
        first = next(iter(self.held.values()))
        return first.round_plan if len(self.held) == 1 and isinstance(first, PlaysOnDevice) else None

    @property
    def process_id(self) -> int | None:
        """Process id of a drafter that runs as a separate process on this machine."""
        elsewhere = [drafter for drafter in self.held.values() if isinstance(drafter, RunsElsewhere)]
        return elsewhere[0].process_id if elsewhere else None

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait until drafters in other processes have started; False on timeout, after which they join later.

        Raises:
            VocabularyError: the vocabulary of one does not fit the target's.
        """
        elsewhere = [drafter for drafter in self.held.values() if isinstance(drafter, RunsElsewhere)]
        return all(drafter.wait_until_ready(timeout_s) for drafter in elsewhere)

    def calibrate(self, measure: Measure) -> None:
        """If drafting is adaptive, base it on measured pass times of the target and of the drafters from now on."""
        own = dict[str, DraftCosts]()
        for name, drafter in self.held.items():
            if isinstance(drafter, HasCosts) and (self._is_adaptive or drafter.needs_costs):
                own[name] = drafter.measure_costs(measure)
        if not self._is_adaptive:
            return
        overheads_s = [costs.round_overhead_s for costs in own.values()]
        costs = RoundCosts(measure(widths_up_to(self.verify_width)), max(overheads_s, default=0.0))
        self.referee = Referee(
            {name: drafter.verify_width for name, drafter in self.held.items()},
            costs,
            own=own,
            drafts_always=any(isinstance(drafter, RunsElsewhere) for drafter in self.held.values()),
            known=self._known,
            saved_s=self._saved_s,
            reading_s=self._reading_s,
        )

    @property
    def early_search_s(self) -> float:
        """Seconds of generated text that searches before the first request need."""
        return sum(drafter.early_search_s for drafter in self._searchers)

    def search_early(self, seconds: float) -> None:
        """Start these searches for this many seconds; 0 ends them."""
        for drafter in self._searchers:
            drafter.search_early(seconds)

    @property
    def skip_report(self) -> SkipReport | None:
        """The sublayers that drafts skip and the search for them; None: no drafter skips any."""
        return self._searchers[0].skip_report if self._searchers else None

    def start_text(self, request: Request, drop_rows: Callable[[], None] = lambda: None) -> None:
        """Start a text.

        Args:
            drop_rows: removes the rows that a proposal may have left behind the text in the target's cache.
        """
        self._request = request
        self._drop_rows = drop_rows
        self._expects = self.verify_width > 1 and (bool(request.prediction) or request.constraint is not None)
        self.resume(request.prompt_ids)

    def resume(self, token_ids: Sequence[int]) -> None:
        """Start the request's text again, which by now is this, after rounds that nobody was told of."""
        request = self._request
        self._root = token_ids[-1]
        self._untold = []
        self._untold_s = 0.0
        self._start_all(token_ids, request.params)
        if self._expects:
            written_ids = token_ids[len(request.own_prompt_ids) :]
            self._prediction.expect(request.prediction, written_ids, request.constraint)
        self.referee.start_answer(request.params.temperature)
        for name in self._down:
            self.referee.leave_out(name)
        self._begun: float | None = perf_counter()
        self._num_prompt = len(token_ids)
        self._readers = {name for name in self.held if self.referee.may_read(name)}
        self._blind = set(self._features) - self._readers
        self._settle_needs()

    def _start_all(self, token_ids: Sequence[int], params: SamplingParams) -> None:
        noise = self._request.noise
        owner = self._request.owner
        tried_again = self._down
        self._down = set()
        for name, drafter in self.held.items():
            if name in tried_again:
                self._try(name, drafter.forget, None)
            self._try(name, partial(drafter.begin, token_ids, params, noise, owner), None)

    def prefill(self) -> bool:
        """Run one wide pass over text that a drafter's cache lacks; False if none lacks any that it should read now."""
        return any(self._read_on(name) for name in self._readers)

    def _read_on(self, name: str) -> bool:
        drafter = self.held[name]
        return isinstance(drafter, ReadsText) and self._try(name, drafter.prefill, False)

    def propose(self) -> TokenTree:
        """The tree to verify in this round: the root alone in a plain round."""
        if self._begun is not None:
            most_s = self._num_prompt * self.referee.costs.plain_s  # more is a pause of the caller
            self.referee.read_prompt(min(perf_counter() - self._begun, most_s))
            self._begun = None
        if self._rider is not None:
            self._prepare_rider(*self._rider)
        predicted = None
        if self._expects:
            proposal = self._prediction.propose(self._root)
            predicted = self.referee.cut_prediction(proposal, is_forced=self._prediction.is_forced)
        self._is_predicted = predicted is not None
        tree = self._proposed_in_turn() if predicted is None else predicted
        self._num_rounds += 1
        self._settle_needs()
        self._num_rows = len(tree)
        self._proposed = perf_counter()
        return tree

    def _prepare_rider(self, name: str, rider: RidesAlong) -> None:
        if name not in self._down and rider.is_due:
            self._tell()
            self._try(name, rider.prepare, None)
        self._rider_spent_s = rider.spent_s

    def _proposed_in_turn(self) -> TokenTree:
        turn = self.referee.turn
        if turn.watched is not None and not self._untold:
            began = perf_counter()
            guess = self._proposal_of(turn.watched)
            if guess is not None:
                self.referee.watch(guess, perf_counter() - began)
        self._began = perf_counter()
        self._current = self.referee.turn.drafter
        proposal = None if self._current is None else self._proposal_of(self._current)
        if proposal is None:
            self._current = None
            return TokenTree(self._root)
        return self.referee.cut(proposal)

    def _proposal_of(self, name: str) -> ProposedTree | None:
        """A drafter's proposal, after it has read all text that it lacks; None if it fails."""

        def propose() -> ProposedTree:
            while self._read_on(name):
                pass
            return self.held[name].propose(self.referee.budget(name))

        proposal = self._try(name, propose, None)
        if proposal is None:
            self._drop_rows()
        return proposal

    def _settle_needs(self) -> None:
        """What the drafters need of the target's next pass."""
        self.taps = () if self._blind or not self._taps or self._down >= set(self._features) else self._taps
        rider = self._rider
        self.adds_rows = rider is not None and rider[0] not in self._down and rider[1].wants_rows
        self.num_successors = 0
        if not self._scores or self._is_predicted:
            return
        if self._current in self._scores and self._current not in self._down:
            self.num_successors = self._scores[self._current].num_successors
        elif self._num_rounds % LEARNING == 0:
            up = [drafter.num_successors for name, drafter in self._scores.items() if name not in self._down]
            self.num_successors = max(up, default=0)

    def extend(self, inputs: ForwardInput) -> ForwardInput:
        """The inputs of the verification pass with a drafter's own rows appended, which are dropped after it."""
        assert self._rider is not None, "no drafter adds rows"
        name, rider = self._rider
        return self._try(name, lambda: rider.extend(inputs), inputs)

    def told_logits(self, logits_EV: Tensor) -> None:
        """Pass on the logits of the rows that `extend` added."""
        assert self._rider is not None, "no drafter added rows"
        name, rider = self._rider
        self._try(name, lambda: rider.told_logits(logits_EV), None)

    def told_successors(self, tree: TokenTree, successors: TopK) -> None:
        """Pass on the target's likeliest tokens after every node of the verified tree."""
        for name, drafter in self._scores.items():
            self._try(name, partial(drafter.told_successors, tree, successors), None)

    def read_features(self, place: int, features: Tensor) -> None:
        """Pass on the target's features of committed tokens; the first is at this place in the text."""
        for name, drafter in self._features.items():
            if name in self._readers:
                self._try(name, partial(drafter.read_features, place, features), None)

    def told_features(self, place: int, features: Tensor) -> None:
        """Pass on the target's features of the verified tree; its root is at this place in the text."""
        for name, drafter in self._features.items():
            if name not in self._blind:
                self._try(name, partial(drafter.told_features, place, features), None)

    def told(self, acceptance: Acceptance) -> DraftReport:
        """Learn the outcome of this round; its bonus token is the next root."""
        self._root = acceptance.bonus_token
        if self._expects:
            self._prediction.told(acceptance.tokens)
        if self._is_predicted:
            self._tell()
            self._tell_all(acceptance, self._verifying_s())
            self.referee.told_prediction(acceptance.tokens)
            return PREDICTED
        if self._current is None:
            return self._told_plain(acceptance)
        name = self._current
        seconds = self._proposed - self._began + self._verifying_s()
        own = DraftOutcome(tokens=acceptance.tokens, path=acceptance.path, is_own=True, seconds=seconds)
        report = self._try(name, partial(self.held[name].told, own), DOWN)
        if len(self.held) > 1:
            self._tell_all(acceptance, seconds, but=name)
        if name in self._down:
            self.referee.told_text(acceptance.tokens)
            return DOWN if self._down >= set(self.held) else PLAIN_REPORT
        self.referee.measure(
            num_rows=self._num_rows,
            token_ids=acceptance.tokens,
            proposal_s=self._proposed - self._began,
            round_s=self._verifying_s(),
        )
        if len(self.held) == 1:
            return report
        return replace(report, drafted_by=PLAIN if self._num_rows == 1 else name)

    def _told_plain(self, acceptance: Acceptance) -> DraftReport:
        self._untold += acceptance.tokens
        self._untold_s += self._verifying_s()
        if len(self._untold) >= TOGETHER or self.num_successors:
            self._tell()
        if self._down and self._down >= set(self.held):
            return DOWN
        return NO_NEWS if len(self.held) <= 1 else PLAIN_REPORT

    def _verifying_s(self) -> float:
        """Seconds since the proposal, without those of a drafter's own rows."""
        rode_s = 0.0 if self._rider is None else self._rider[1].spent_s - self._rider_spent_s
        return perf_counter() - self._proposed - rode_s

    def _tell(self) -> None:
        """Tell all drafters of the plain rounds since the last call."""
        if not self._untold:
            return
        token_ids = tuple(self._untold)
        seconds = self._untold_s
        self._untold = []
        self._untold_s = 0.0
        self._tell_all(Acceptance(path=(), tokens=token_ids), seconds)
        num_rounds = len(token_ids)
        self.referee.measure(
            num_rows=1, token_ids=token_ids, proposal_s=0.0, round_s=seconds / num_rounds, num_rounds=num_rounds
        )

    def _tell_all(self, acceptance: Acceptance, seconds: float, but: str | None = None) -> None:
        outcome = DraftOutcome(tokens=acceptance.tokens, path=acceptance.path, seconds=seconds)
        for name, drafter in self.held.items():
            if name != but:
                self._try(name, partial(drafter.told, outcome), NO_NEWS)

    def end(self) -> None:
        """End the text; no work is needed until the next one begins."""
        self._tell()
        for name, drafter in self.held.items():
            self._try(name, drafter.end, None)

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens no drafter can propose because its vocabulary lacks them."""
        known = [drafter for drafter in self.held.values() if isinstance(drafter, HasVocabulary)]
        return max((drafter.num_unknown(token_ids) for drafter in known), default=0)

    def state(self) -> bytes:
        """What a drafter has learnt about its target, for the next start; empty if that is nothing."""
        kept = [drafter for drafter in self.held.values() if isinstance(drafter, KeepsState)]
        return next((state for drafter in kept if (state := drafter.state())), b"")

    def restore(self, state: bytes) -> bool:
        """Restore such a state, which is untrusted input; False, with no effect, if it is invalid for this target."""
        return any(drafter.restore(state) for drafter in self.held.values() if isinstance(drafter, KeepsState))

    def forget(self) -> None:
        """Drop all that is kept of texts."""
        for drafter in self.held.values():
            drafter.forget()

    def close(self) -> None:
        """Free all resources."""
        for drafter in self.held.values():
            drafter.close()

    def _reading_s(self, name: str) -> float:
        if name in self._blind:
            return inf
        drafter = self.held[name]
        return drafter.reading_s if isinstance(drafter, ReadsText) else 0.0

    def _try(self, name: str, call: Callable[[], T], otherwise: T) -> T:
        """The result of a call of this drafter; `otherwise` if it raises, or if an earlier call in this text has."""
        if name in self._down:
            return otherwise
        try:
            return call()
        except FAULTS as error:
            self._down.add(name)
            self.referee.leave_out(name)
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            logger.log(
                level,
                "drafting has stopped, plain decoding continues: the drafter failed (%s: %s); "
                "the next request tries it again",
                type(error).__name__,
                error,
                exc_info=logger.isEnabledFor(logging.DEBUG),
            )
            return otherwise
