"""The search for sublayers to skip: a strategy proposes sets, which are scored on text whose next tokens are known."""

from collections.abc import Sequence
from functools import cache
from time import perf_counter
from typing import Final, Protocol

from torch import Tensor

from forerun.core.pace import Pace
from forerun.core.sublayers import SkipSet
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.layer_skip.probe_rows import ProbeLayout, ProbeRows
from forerun.model.executor import ForwardInput
from forerun.model.self_drafting import SharedCacheRunner
from forerun.speculation.referee.time_share import TimeShare

CHAIN: Final = 4  # rows per scoring of a candidate, which are the first steps of a draft
MOST_PROBE_ROWS: Final = 16  # limit on the rows added to a pass
PROBE_S: Final = 0.5e-3  # fixed seconds that probe rows take in addition to their pass
PASSES_SAVED: Final = 1.0  # limit on unused search time that is saved for later, in passes


class Strategy(Protocol):
    """Decides which sets are scored and which one is in use.

    Args:
        skipped: the set in use, which is the sublayers that draft passes skip now.
        is_shaped: a guess is scored after the request's penalties, filters and noise, like that of a draft.
    """

    skipped: SkipSet
    is_shaped: bool = True
    is_searching: bool = False  # better sets are still looked for

    @property
    def num_scored(self) -> int:
        """Candidates scored so far, see `SkipReport`."""
        return 0

    @property
    def matchness(self) -> float | None:
        """Share of the known tokens over which the set in use was scored that it guessed; None: it was not scored."""
        return None

    @property
    def share(self) -> float:
        """The share of the possible scoring that it wants now; 0 if it wants none."""
        return 0.0

    def start_request(self) -> None:
        """Start a request."""
        return

    def window(self, num_prompt: int, num_tokens: int) -> range:
        """The positions to score at, in a text of this length; empty while the text is too short.

        Prompt text is not used, because its next tokens were not chosen by the target.
        """
        start = num_tokens - 1 - CHAIN
        return range(start, start + CHAIN if start >= num_prompt - 1 else start)

    def propose(self, count: int, context: int) -> Sequence[SkipSet]:
        """At most this many different sets to score next, all at the same positions of a text of this length."""
        return ()

    def told(self, skipped: SkipSet, num_hits: float, num_rows: float, *, is_draft: bool = False) -> None:
        """Record the guesses of one set.

        Args:
            num_hits: how many of `num_rows` guesses equalled the text's token.
            is_draft: these are guesses of the draft in use. They measure its hit rate, but cannot be used to compare
                sets, since the draft selected the positions itself.
        """
        return

    def may_pay(self, context: int) -> bool:
        """False if plain decoding is expected to be faster than drafting with the set in use."""
        return True

    def take_overheads(self, round_s: float, expansion_s: float, plain_s: float) -> None:
        """Update the measured seconds that rounds, drafted tokens and plain rounds take in addition to their passes."""
        return


class FixedSet(Strategy):
    """A fixed set; nothing is scored."""

    def __init__(self, skipped: SkipSet) -> None:
        self.skipped = skipped


class SkipSearch:
    """Scores the candidates of a strategy during generation. It takes time but never changes the text.

    With a time limit, candidates are probe rows in verification passes. Without one, or if the draft has separate
    weights, they run in a separate pass.

    Args:
        target: seconds of a verification by its rows, up to the maximum including probe rows; None: there is no limit.
        share: limit on the search's share of the total time.
        early_s: seconds of generated text that it needs before the first request.
    """

    def __init__(
        self,
        strategy: Strategy,
        runner: SharedCacheRunner,
        target: Pace | None = None,
        share: float = 1.0,
        *,
        early_s: float = 0.0,
    ) -> None:
        self.strategy = strategy
        self.early_s = early_s
        self.spent_s = 0.0
        self._runner = runner
        self._target = target
        self._time = None if target is None else TimeShare(share, PASSES_SAVED * target.step_s(1))
        self._runs_alone = target is None or runner.has_copy
        self._layout = ProbeLayout(runner.spec.num_layers)
        self._num_prompt = 0
        self._probes: ProbeRows | None = None

    @property
    def wants_pass(self) -> bool:
        """True if it needs a separate pass."""
        return self._runs_alone and self._is_due

    @property
    def wants_rows(self) -> bool:
        """True if it needs rows in the next verification."""
        return not self._runs_alone and self._is_due

    @property
    def uses_every_round(self) -> bool:
        """True if every round should be used, because no request is waiting."""
        return self._time is not None and self._time.is_eager

    def start_request(self, num_prompt: int) -> None:
        """Start a request with this many prompt tokens."""
        self._num_prompt = num_prompt
        self.strategy.start_request()

    def run_pass(self, draft: DraftTree) -> None:
        """Score candidates in a separate pass, before the draft of a round grows."""
        began = perf_counter()
        probes = self._gather(draft, MOST_PROBE_ROWS)
        if probes is not None:
            logits = self._runner.forward(self._layout.alone(probes, self._runner.cache.end)).logits
            self._runner.drop_rows()
            self._score(probes, logits, draft)
        self._spend(perf_counter() - began)

    def extend(self, inputs: ForwardInput, draft: DraftTree) -> ForwardInput:
        """The verification pass with probe rows appended, if any."""
        assert self._target is not None, "rows are added within a limit"
        began = perf_counter()
        num_own = len(inputs.token_ids)
        self._probes = self._gather(draft, best_num_rows(self._target, num_own))
        if self._probes is not None:
            self._spend(self._target.step_s(num_own + self._probes.num_rows) - self._target.step_s(num_own))
            inputs = self._layout.add_to(inputs, self._probes)
        self._spend(perf_counter() - began)
        return inputs

    def told_logits(self, logits_EV: Tensor, draft: DraftTree) -> None:
        """Use the logits of those rows."""
        began = perf_counter()
        if self._probes is not None:
            self._score(self._probes, logits_EV, draft)
        self._probes = None
        self._spend(perf_counter() - began)

    def take_time(self, seconds: float) -> None:
        """Record the time of rounds."""
        if self._time is not None:
            self._time.pass_by(seconds, self.strategy.share)

    def allow(self, seconds: float) -> None:
        """Allow this much search time at once, while no request is waiting; 0 ends it."""
        if self._time is not None:
            self._time.hurry(seconds)

    @property
    def _is_due(self) -> bool:
        return self.strategy.share > 0.0 and (self._time is None or self._time.is_open)

    def _spend(self, seconds: float) -> None:
        self.spent_s += seconds
        if self._time is not None:
            self._time.spend(seconds)

    def _gather(self, draft: DraftTree, num_rows: int) -> ProbeRows | None:
        """Rows of candidates over text whose next tokens are known.

        None if the text is still too short, or the cache no longer holds all that these rows would read.
        """
        token_ids = draft.token_ids
        window = self.strategy.window(self._num_prompt, len(token_ids))
        if not window or self._runner.cache.resumable(window.start) < window.start:
            return None
        skipped = self.strategy.propose(num_rows // CHAIN, len(token_ids) - 1)
        return ProbeRows(token_ids=token_ids[window.start : window.stop], start=window.start, skipped=skipped)

    def _score(self, probes: ProbeRows, logits_EV: Tensor, draft: DraftTree) -> None:
        length = len(probes.token_ids)
        truth = draft.token_ids[probes.start + 1 : probes.start + 1 + length]
        places = [place + 1 for place in probes.places]
        guesses = draft.guess(logits_EV, places) if self.strategy.is_shaped else logits_EV.argmax(-1).tolist()
        for number, skipped in enumerate(probes.skipped):
            hits = map(int.__eq__, guesses[number * length : (number + 1) * length], truth)
            self.strategy.told(skipped, sum(hits), length)


@cache
def best_num_rows(target: Pace, num_own: int) -> int:
    """The number of probe rows that scores the most rows per second, next to this many verified rows."""
    alone_s = target.step_s(num_own) - PROBE_S
    sizes = range(2 * CHAIN, MOST_PROBE_ROWS + 1, CHAIN)
    return max(sizes, key=lambda rows: rows / (target.step_s(num_own + rows) - alone_s))
