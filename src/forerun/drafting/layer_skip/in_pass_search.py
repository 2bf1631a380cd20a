"""Our search: it scores candidates with rows that skip their own sublayers, within the verification passes."""

from time import perf_counter

from torch import Tensor

from forerun.core.pace import Pace
from forerun.core.sublayers import SkipSet
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.probe_rows import ProbeLayout, ProbeRows
from forerun.drafting.layer_skip.set_search import SetSearch
from forerun.drafting.layer_skip.settings import TUNED, SearchSettings
from forerun.drafting.layer_skip.skip_search import SkipSearch
from forerun.model.inputs import ForwardInput
from forerun.model.shared_cache import SharedCacheRunner
from forerun.speculation.economy.time_share import TimeShare


class InPassSearch(SkipSearch):
    """Adds probe rows to verification passes within its share of the time.

    If the draft has separate weights, the candidates run with these, in a separate pass.

    Args:
        target: seconds of a verification by its rows, up to the maximum including probe rows.
        share: share of the total time that the search may take.
        early_s: see `SkipSearch`.
    """

    def __init__(
        self, search: SetSearch, runner: SharedCacheRunner, target: Pace, share: float, *, early_s: float = 0.0,
        settings: SearchSettings = TUNED,
    ) -> None:  # fmt: skip
        self.search, self._runner, self._target, self._settings = search, runner, target, settings
        self.early_s = early_s
        self._time = TimeShare(share, most_saved_s=settings.passes_saved * target.step_s(1))
        self._layout = ProbeLayout(runner.spec.num_layers)
        self._num_prompt = 0
        self._probes: ProbeRows | None = None
        self._best_numbers: dict[int, int] = {}

    @property
    def skipped(self) -> SkipSet:
        return self.search.skipped

    @property
    def wants_pass(self) -> bool:
        return self._runner.has_copy and self._time.is_open

    @property
    def wants_rows(self) -> bool:
        return self._time.is_open and not self._runner.has_copy

    @property
    def uses_every_round(self) -> bool:
        return self._time.is_eager

    def begin(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self.search.begin_request()

    def is_worth_it(self, context: int) -> bool:
        search, speed_model = self.search, self.search.speed_model
        if search.is_worth_it(context):
            return True
        is_cheap_to_try = speed_model.round_s < self._settings.trial_overhead * self._target.step_s(1)
        return is_cheap_to_try and search.speed(context) > self._settings.trial_margin * speed_model.plain_speed()

    def run_pass(self, draft: DraftTree) -> None:
        began = perf_counter()
        probes = self._gather(draft, self._settings.most_probe_rows)
        if probes is not None:
            logits = self._runner.forward(self._layout.alone(probes, self._runner.cache.end)).logits
            self._runner.drop_rows()
            self._score(probes, logits, draft)
        self._spend(perf_counter() - began)

    def extend(self, inputs: ForwardInput, draft: DraftTree) -> ForwardInput:
        began, num_own = perf_counter(), len(inputs.token_ids)
        self._probes = self._gather(draft, self._num_rows(num_own))
        if self._probes is not None:
            self._spend(self._target.step_s(num_own + self._probes.num_rows) - self._target.step_s(num_own))
            inputs = self._layout.add_to(inputs, self._probes)
        self._spend(perf_counter() - began)
        return inputs

    def observe(self, logits_EV: Tensor, draft: DraftTree) -> None:
        began = perf_counter()
        if self._probes is not None:
            self._score(self._probes, logits_EV, draft)
        self._probes = None
        self._spend(perf_counter() - began)

    def take_guess(self, skipped: SkipSet, is_hit: bool) -> None:
        self.search.record(skipped, int(is_hit), 1, is_draft=True)

    def take_time(self, seconds: float) -> None:
        self._time.pass_by(seconds, self.search.share)

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        self.search.take_overheads(round_s, expansion_s, plain_s)

    def allow(self, seconds: float) -> None:
        self._time.hurry(seconds)

    def _spend(self, seconds: float) -> None:
        self._time.spend(seconds)
        self.spent_s += seconds

    def _num_rows(self, num_own: int) -> int:
        """The number of probe rows that scores the most rows per second, next to this many verified rows."""
        found = self._best_numbers.get(num_own)
        if found is None:
            step_s, chain = self._target.step_s, self._settings.chain
            alone_s = step_s(num_own) - self._settings.probe_s
            sizes = range(2 * chain, self._settings.most_probe_rows + 1, chain)
            found = max(sizes, key=lambda rows: rows / (step_s(num_own + rows) - alone_s))
            self._best_numbers[num_own] = found
        return found

    def _gather(self, draft: DraftTree, num_rows: int) -> ProbeRows | None:
        """Rows of candidates over the latest text whose next tokens are known; None if the text is still too short.

        Prompt text is not used, because its next tokens were not chosen by the target.
        """
        token_ids, chain = draft.token_ids, self._settings.chain
        root = len(token_ids) - 1
        start = root - chain
        if start < self._num_prompt - 1:
            return None
        skipped = self.search.candidates(num_rows // chain, root)
        return ProbeRows(token_ids=token_ids[start:root], start=start, skipped=skipped)

    def _score(self, probes: ProbeRows, logits_EV: Tensor, draft: DraftTree) -> None:
        length = len(probes.token_ids)
        truth = draft.token_ids[probes.start + 1 : probes.start + 1 + length]
        guesses = draft.guess(logits_EV, [place + 1 for place in probes.places])
        for number, skipped in enumerate(probes.skipped):
            hits = map(int.__eq__, guesses[number * length : (number + 1) * length], truth)
            self.search.record(skipped, sum(hits), length)
