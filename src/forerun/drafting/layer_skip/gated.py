"""Our search: candidates ride along in the verification passes, as rows with gates of their own."""

from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.core.pace import Pace
from forerun.core.sublayers import SkipSet
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.probe_rows import RiderLayout, Riders
from forerun.drafting.layer_skip.set_search import SetSearch
from forerun.model.inputs import ForwardInput
from forerun.model.shared_cache import LentRunner
from forerun.speculation.time_share import TimeShare

CHAIN: Final = 4  # rows that score one candidate at a time: the first steps of a draft
MOST_RIDERS: Final = 16
BOARDING_S: Final = 0.5e-3  # what riders take beside their rows, however few: choosing them, seating them, learning
WORTH_A_TRIAL: Final = 0.9  # times plain speed expected: drafts stop where they are unsure, which is worth more
CHEAP_TO_TRY: Final = 0.1  # of a pass, taken by a round beyond its passes: with more, trials cost what they gain
PASSES_SAVED: Final = 1.0  # so long as these take, searching can be saved up for


class GatedSkips:
    """Lets candidates ride along as long as that stays within its share of the time.

    Where the draft has weights of its own, the candidates are run with these, in a pass of their own.

    Args:
        target: seconds of a verification by its rows, as many as there may be with all riders.
        share: of all time.
    """

    def __init__(self, search: SetSearch, runner: LentRunner, target: Pace, share: float) -> None:
        self._search, self._runner, self._target = search, runner, target
        self._time = TimeShare(share, most_saved_s=PASSES_SAVED * target.step_s(1))
        self._layout = RiderLayout(runner.spec.num_layers)
        self._num_prompt = 0
        self._riders: Riders | None = None
        self._best_numbers: dict[int, int] = {}
        self.spent_s = 0.0

    @property
    def search(self) -> SetSearch:
        """What has been found so far."""
        return self._search

    @property
    def skipped(self) -> SkipSet:
        return self._search.skipped

    def begin(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self._search.begin_request()

    def is_worth_it(self, context: int) -> bool:
        search, speed_model = self._search, self._search.speed_model
        if search.is_worth_it(context):
            return True
        is_cheap_to_try = speed_model.round_s < CHEAP_TO_TRY * self._target.step_s(1)
        return is_cheap_to_try and search.speed(context) > WORTH_A_TRIAL * speed_model.plain_speed()

    @property
    def wants_to_look(self) -> bool:
        return self._runner.has_copy and self._time.is_open

    def look(self, draft: DraftTree) -> None:
        began, cache = perf_counter(), self._runner.cache
        riders = self._gather(draft, MOST_RIDERS // CHAIN)
        if riders is not None:
            logits = self._runner.forward(self._layout.ride_alone(riders, cache.reserve(riders.num_rows))).logits
            self._runner.give_back()
            self._score(riders, logits, draft)
        self._spend(perf_counter() - began)

    @property
    def is_eager(self) -> bool:
        return self._time.is_eager

    @property
    def wants_to_ride(self) -> bool:
        return self._time.is_open and not self._runner.has_copy

    def board(self, host: ForwardInput, draft: DraftTree) -> ForwardInput:
        began, num_host = perf_counter(), len(host.token_ids)
        self._riders = self._gather(draft, self._num_riders(num_host) // CHAIN)
        if self._riders is not None:
            self._runner.cache.reserve(self._riders.num_rows)
            self._spend(self._target.step_s(num_host + self._riders.num_rows) - self._target.step_s(num_host))
            host = self._layout.ride_along(host, self._riders)
        self._spend(perf_counter() - began)
        return host

    def arrive(self, logits_EV: Tensor, draft: DraftTree) -> None:
        began = perf_counter()
        if self._riders is not None:
            self._score(self._riders, logits_EV, draft)
        self._riders = None
        self._spend(perf_counter() - began)

    def hurry(self, seconds: float) -> None:
        """Let the search take so much time at once, where nobody waits for an answer; 0: that is over."""
        self._time.hurry(seconds)

    def learn(self, skipped: SkipSet, is_hit: bool) -> None:
        self._search.record(skipped, int(is_hit), 1, is_draft=True)

    def pass_by(self, seconds: float) -> None:
        self._time.pass_by(seconds, self._search.share)

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        self._search.take_overheads(round_s, expansion_s, plain_s)

    def _spend(self, seconds: float) -> None:
        self._time.spend(seconds)
        self.spent_s += seconds

    def _num_riders(self, num_host: int) -> int:
        """The number of riders that tells most for its time."""
        found = self._best_numbers.get(num_host)
        if found is None:
            step_s, sizes = self._target.step_s, range(2 * CHAIN, MOST_RIDERS + 1, CHAIN)
            alone_s = step_s(num_host) - BOARDING_S
            found = max(sizes, key=lambda rows: rows / (step_s(num_host + rows) - alone_s))
            self._best_numbers[num_host] = found
        return found

    def _gather(self, draft: DraftTree, num_sets: int) -> Riders | None:
        """Candidates over the newest text whose next token is known; None where too little was written as yet.

        Only what the target wrote counts: a prompt's next token is not what the target would have chosen.
        """
        token_ids = draft.token_ids
        root = len(token_ids) - 1
        start = root - CHAIN
        if start < self._num_prompt - 1:
            return None
        skipped = self._search.candidates(num_sets, root)
        return Riders(token_ids=token_ids[start:root], start=start, skipped=skipped)

    def _score(self, riders: Riders, logits_EV: Tensor, draft: DraftTree) -> None:
        truth = draft.token_ids[riders.start + 1 : riders.start + 1 + CHAIN]
        guesses = draft.guess(logits_EV, [place + 1 for place in riders.places])
        for chain, skipped in enumerate(riders.skipped):
            hits = map(int.__eq__, guesses[chain * CHAIN : (chain + 1) * CHAIN], truth)
            self._search.record(skipped, sum(hits), CHAIN)
