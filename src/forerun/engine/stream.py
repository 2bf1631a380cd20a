"""A generation in progress."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from types import TracebackType

import torch

from forerun.core.errors import EngineBusyError
from forerun.core.steps import (
    DecodeStep,
    DrafterState,
    FinishReason,
    Generation,
    GenerationStats,
    Speedup,
    StepStats,
)
from forerun.engine.assembly import TextAssembly
from forerun.engine.loop import Round
from forerun.engine.turn import Turn

Compare = Callable[[Sequence[int], int, float], Speedup | None]  # a text's tokens, rounds and seconds of decoding


class GenerationStream:
    """Iterate for the steps; `result()` for the whole. Closing early cancels and leaves nothing behind.

    Invariant: every id a step carries is final. The steps' texts joined are the result's text, except that a cancelled
    one's result also has what was still held back.
    """

    def __init__(
        self,
        rounds: Generator[Round, None, None],
        assembly: TextAssembly,
        turn: Turn,
        *,
        seed: int,
        num_prompt: int,
        num_reused: int,
        prefill_s: float,
        compare: Compare | None = None,
    ) -> None:
        self._rounds, self._assembly, self._turn, self._seed = rounds, assembly, turn, seed
        self._num_prompt, self._num_reused, self._prefill_s = num_prompt, num_reused, prefill_s
        self._inference = torch.inference_mode()
        self._stats: list[StepStats] = []
        self._decode_s = 0.0
        self._error: BaseException | None = None
        self._compare = compare
        self._speedup: Speedup | None = None

    def __iter__(self) -> Iterator[DecodeStep]:
        return self

    def __next__(self) -> DecodeStep:
        if self._assembly.finish is not None:
            raise StopIteration
        began = perf_counter()
        try:
            with self._turn, self._inference:
                step = next(self._rounds)
        except EngineBusyError:
            raise
        except BaseException as error:
            self._error = error
            self.cancel()
            raise
        self._decode_s += perf_counter() - began
        self._stats.append(step.stats)
        token_ids, text = self._assembly.add(step.token_ids)
        done = DecodeStep(token_ids=token_ids, text=text, finish=self._assembly.finish, stats=step.stats)
        if done.finish is not None:
            self._rounds.close()
        return done

    def __enter__(self) -> "GenerationStream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the text where it stands; without effect once it has ended."""
        if self._assembly.finish is None:
            self._assembly.end(FinishReason.CANCELLED)
        with suppress(EngineBusyError), self._turn:  # a round that another thread is in comes to its own end
            self._rounds.close()

    def discard(self) -> None:
        """The same, for the engine, whose turn it is: the caches are another text's from now on."""
        self._compare = None
        if self._assembly.finish is None:
            self._assembly.end(FinishReason.CANCELLED)
        self._rounds.close()

    def result(self) -> Generation:
        """Run to the end and return the whole text with its statistics; raise again what ended it early."""
        for _ in self:
            pass
        if self._error is not None:
            raise self._error
        assert self._assembly.finish is not None, "a drained stream has ended"
        self._measure_speedup()
        return Generation(
            text=self._assembly.text,
            token_ids=tuple(self._assembly.token_ids),
            finish_reason=self._assembly.finish,
            seed=self._seed,
            stats=self._summary(),
        )

    def _measure_speedup(self) -> None:
        """Compare with plain decoding, once, unless nobody asked for it, nothing was drafted, or the text was ended."""
        was_drafted = any(item.num_drafted for item in self._stats)
        if self._compare is None or not was_drafted or self._assembly.finish is FinishReason.CANCELLED:
            return
        compare, self._compare = self._compare, None
        with suppress(EngineBusyError), self._turn, self._inference:
            self._speedup = compare(self._assembly.token_ids, len(self._stats), self._decode_s)

    def _summary(self) -> GenerationStats:
        num_new, num_rounds = len(self._assembly.token_ids), len(self._stats)
        num_accepted = sum(item.num_accepted for item in self._stats)
        return GenerationStats(
            num_prompt_tokens=self._num_prompt,
            num_reused_tokens=self._num_reused,
            num_new_tokens=num_new,
            num_rounds=num_rounds,
            num_drafted=sum(item.num_drafted for item in self._stats),
            num_accepted=num_accepted,
            num_near_ties=sum(item.num_near_ties for item in self._stats),
            tokens_per_s=num_new / self._decode_s if self._decode_s else 0.0,
            tokens_per_round=num_new / num_rounds if num_rounds else 0.0,
            accepted_per_round=num_accepted / num_rounds if num_rounds else 0.0,
            hit_rate=sum(item.was_hit for item in self._stats) / num_rounds if num_rounds else 0.0,
            prefill_s=self._prefill_s,
            decode_s=self._decode_s,
            draft_s=sum(item.draft_s for item in self._stats),
            verify_s=sum(item.verify_s for item in self._stats),
            wait_s=sum(item.wait_s for item in self._stats),
            num_rounds_late=sum(item.drafter is DrafterState.LATE for item in self._stats),
            num_rounds_down=sum(item.drafter is DrafterState.DOWN for item in self._stats),
            speedup=self._speedup,
        )
