"""A generation in progress."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from types import TracebackType

from forerun.core.errors import EngineBusyError
from forerun.core.steps import (
    PREDICTION,
    DecodeStep,
    DrafterState,
    FinishReason,
    Generation,
    GenerationStats,
    PrefillStep,
    Speedup,
    StepStats,
    TokenLogprob,
)
from forerun.core.stop_flag import PassStopped, StopFlag, stopped_by
from forerun.core.threads import inference
from forerun.decoding.decoder import Round
from forerun.engine.exclusive import ExclusiveUse
from forerun.engine.threads_and_cores import CorePlacement
from forerun.text.detokenizer import TextAssembly

# A text's tokens, rounds and seconds of decoding, and whether plain rounds may be timed after it.
Compare = Callable[[Sequence[int], int, float, bool], Speedup | None]


class GenerationStream:
    """Iterate for the steps, or call `result()` for the whole text. Leaving a `with` block early cancels it.

    Nothing is computed before the first step is requested. The prompt is read first, all at once, or pass by pass to
    show progress: `for part in stream.prefill(): print(part.num_read)`.

    Every id in a step is final. The steps' texts joined are the result's text, except that the result of a cancelled
    stream also includes text that was still held back.

    Args:
        request: the passes that read the prompt, then the rounds.
        num_outside: counts the tokens that no draft could propose.
        on_round: called with every round and the number of its tokens in the text.
    """

    def __init__(
        self,
        request: Generator[PrefillStep | Round, None, None],
        assembly: TextAssembly,
        exclusive: ExclusiveUse,
        cores: CorePlacement,
        *,
        seed: int,
        num_prompt: int,
        num_outside: Callable[[Sequence[int]], int],
        compare: Compare | None = None,
        on_round: Callable[[StepStats, int], None] | None = None,
    ) -> None:
        self._request = request
        self._assembly = assembly
        self._exclusive = exclusive
        self._cores = cores
        self._seed = seed
        self._num_prompt = num_prompt
        self._read: PrefillStep | None = None
        self._prompt_logprobs: list[TokenLogprob] = []
        self._stats: list[StepStats] = []
        self._num_accepted = 0  # drafted tokens that are in the text
        self._num_predicted = self._num_foretold = 0  # tokens of the prediction: drafted ones, and right ones
        self._prefill_s = self._decode_s = 0.0
        self._is_torn = False  # a step was interrupted, so its effect is unknown and no step can follow
        self._error: BaseException | None = None
        self._stop = StopFlag()
        self._compare = compare
        self._num_outside = num_outside
        self._on_round = on_round
        self._speedup: Speedup | None = None

    def __iter__(self) -> Iterator[DecodeStep]:
        return self

    def prefill(self) -> Iterator[PrefillStep]:
        """Read the prompt pass by pass; no passes if it was already read."""
        while self._is_reading and isinstance(played := self._play(), PrefillStep):
            yield played

    def __next__(self) -> DecodeStep:
        while self._is_reading:
            self._play()
        match self._play():
            case DecodeStep() as step:  # no call until the return, so an interrupt cannot lose a finished step
                return step
        raise StopIteration

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far; the last one is not cached yet. 0 before the prompt was read."""
        return 0 if self._read is None else self._num_prompt + len(self._assembly.token_ids)

    @property
    def _is_reading(self) -> bool:
        read = self._read
        return self._assembly.finish is None and (read is None or read.num_read < read.num_tokens)

    def _play(self) -> PrefillStep | DecodeStep | None:
        """The next pass or round; None at the end. An error ends the text, and `result` raises it too."""
        if self._assembly.finish is not None:
            return None
        try:
            played = self._advance()
            self._is_torn = False
            return played
        except EngineBusyError:
            raise
        except Exception as error:
            self._error = error
            self.cancel()
            raise
        except BaseException:  # an interrupt cancels the text, which is not an error
            self.cancel()
            raise

    def _advance(self) -> PrefillStep | DecodeStep | None:
        with self._exclusive, inference():
            if self._is_torn:
                self._end()
                return None
            self._is_torn = True
            began = perf_counter()
            try:
                with stopped_by(self._stop):
                    played = self._cores.run(self._request.__next__)
            except PassStopped:
                self._end()
                return None
            elapsed = perf_counter() - began
            return (
                self._told_prefill(played, elapsed)
                if isinstance(played, PrefillStep)
                else self._told_round(played, elapsed)
            )

    def _told_prefill(self, played: PrefillStep, elapsed: float) -> PrefillStep:
        self._prefill_s += elapsed
        self._read = played
        self._prompt_logprobs += played.logprobs
        return played

    def _told_round(self, played: Round, elapsed: float) -> DecodeStep:
        self._decode_s += elapsed
        self._stats.append(played.stats)
        token_ids, text = self._assembly.add(played.token_ids)
        num_accepted = min(played.stats.num_accepted, len(token_ids))
        self._num_accepted += num_accepted
        if played.stats.drafted_by == PREDICTION:
            self._num_predicted += played.stats.num_drafted
            self._num_foretold += num_accepted
        if self._on_round is not None:
            self._on_round(played.stats, len(token_ids))
        if self._assembly.finish is not None:
            self._request.close()
        return DecodeStep(
            token_ids=token_ids,
            text=text,
            finish=self._assembly.finish,
            stop=self._assembly.stop,
            stats=played.stats,
            logprobs=played.logprobs[: len(token_ids)],
        )

    def __enter__(self) -> "GenerationStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the text now; no effect if it has ended."""
        self._end()
        try:
            with self._exclusive:
                self._request.close()
        except EngineBusyError:
            self.give_up()

    def give_up(self) -> None:
        """End the text of the thread that runs this stream, in the middle of a pass. Any thread may call it."""
        self._stop.set()

    def discard(self) -> None:
        """Cancel for the engine, which holds the lock; from now on the caches belong to another text."""
        self._compare = None
        self._end()
        self._request.close()

    def _end(self) -> None:
        if self._assembly.finish is None:
            self._assembly.end(FinishReason.CANCELLED)

    def result(self, *, times_plain: bool = True) -> Generation:
        """Run to the end and return the whole text with its statistics; re-raise the error that ended it early.

        Args:
            times_plain: if the speed-up needs more timed plain rounds, time them now, which takes a moment; otherwise
                the speed-up may be None.
        """
        for _ in self:
            pass
        if self._error is not None:
            raise self._error
        assert self._assembly.finish is not None, "a drained stream has ended"
        self._measure_speedup(times_plain)
        return Generation(
            text=self._assembly.text,
            token_ids=tuple(self._assembly.token_ids),
            finish_reason=self._assembly.finish,
            seed=self._seed,
            stats=self._summary(),
            prompt_logprobs=tuple(self._prompt_logprobs),
        )

    def _measure_speedup(self, times_plain: bool) -> None:
        """Compare with plain decoding once, if requested, and if the text was drafted and not cancelled."""
        was_drafted = any(item.num_drafted for item in self._stats)
        if self._compare is None or not was_drafted or self._assembly.finish is FinishReason.CANCELLED:
            return
        compare = self._compare
        self._compare = None
        with suppress(EngineBusyError), self._exclusive, inference():
            self._speedup = compare(self._assembly.token_ids, len(self._stats), self._decode_s, times_plain)

    def _summary(self) -> GenerationStats:
        num_new = len(self._assembly.token_ids)
        num_rounds = len(self._stats)
        num_reused = 0 if self._read is None else self._read.num_reused
        num_read = max(0, self._num_prompt - 1 - num_reused)  # the last one is read with the first round
        return GenerationStats(
            num_prompt_tokens=self._num_prompt,
            num_reused_tokens=num_reused,
            num_new_tokens=num_new,
            num_rounds=num_rounds,
            num_drafted=sum(item.num_drafted for item in self._stats),
            num_accepted=self._num_accepted,
            num_near_ties=sum(item.num_near_ties for item in self._stats),
            tokens_per_s=num_new / self._decode_s if self._decode_s else 0.0,
            tokens_per_round=num_new / num_rounds if num_rounds else 0.0,
            accepted_per_round=self._num_accepted / num_rounds if num_rounds else 0.0,
            hit_rate=sum(item.was_hit for item in self._stats) / num_rounds if num_rounds else 0.0,
            prefill_s=self._prefill_s,
            prompt_tokens_per_s=num_read / self._prefill_s if self._prefill_s else 0.0,
            first_token_s=self._prefill_s + sum(item.draft_s + item.verify_s for item in self._stats[:1]),
            decode_s=self._decode_s,
            draft_s=sum(item.draft_s for item in self._stats),
            verify_s=sum(item.verify_s for item in self._stats),
            wait_s=sum(item.wait_s for item in self._stats),
            num_rounds_late=sum(item.drafter is DrafterState.LATE for item in self._stats),
            num_rounds_down=sum(item.drafter is DrafterState.DOWN for item in self._stats),
            num_outside=self._num_outside(self._assembly.token_ids),
            num_predicted_accepted=self._num_foretold,
            num_predicted_rejected=self._num_predicted - self._num_foretold,
            rounds_by=dict(Counter(item.drafted_by for item in self._stats if item.drafted_by).most_common()),
            speedup=self._speedup,
            skips=next((item.skips for item in reversed(self._stats) if item.skips is not None), None),
        )
