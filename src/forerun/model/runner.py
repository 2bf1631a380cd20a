"""A model with its cache behind one forward()."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, sleep
from typing import TypeAlias

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.core.pace import Pace
from forerun.core.shared_length import shared_length
from forerun.core.sublayers import NOTHING, SkipSet, kept_share
from forerun.model.backend import ModelBackend
from forerun.model.executor import Executor, Observer
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.step import CacheMove, Step, Tell, nobody
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.model.weights import WeightSource
from forerun.runtime.inference import inference

PREFILL_ROWS = 256  # rows of one prefill pass: wide enough for the matrix code, small enough for its buffers
SPIN_S = 0.2e-3  # a sleep of some ms mostly wakes 0.1 to 0.2 ms late
MakeExecutor: TypeAlias = Callable[[ModelSpec, WeightSource, TreeCache, SkipSet], Executor]
LEAST_ROWS = 16  # what is lost with fewer is read again in one pass, which costs little more than one of a single row


class Runner:
    """Model, cache and the text the cache stands for; other texts that it stood for are saved, see `recall`.

    What is `unused` has neither weights here nor a part in any pass: a layer-skipped copy of a model.
    With a `pace`, no pass takes less than the pace's time for its rows.
    Invariant: `cached_ids` are the committed tokens of the cache, in order; only `sync`, `commit`, `adopt` and `recall`
    add to them.

    Args:
        cache_bytes: of saved texts, at most.
        make_executor: what runs passes, from the same values as `backend.executor`; None: the backend's.
        tell: see `TreeCache`.
        on_close: ends whoever else has a part of the model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: WeightSource,
        *,
        backend: ModelBackend,
        capacity: int,
        dtype: torch.dtype,
        device: str,
        pace: Pace | None = None,
        unused: SkipSet = NOTHING,
        cache_bytes: int = 0,
        make_executor: MakeExecutor | None = None,
        tell: Tell = nobody,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.spec, self.device, self.backend, self._pace, self._unused = spec, device, backend, pace, unused
        self.cache = TreeCache(spec, capacity, dtype=dtype, device=device, move_slots=backend.move_slots, tell=tell)
        self.cached_ids: list[int] = []
        self.owner, self._on_close = "", on_close  # `owner`: whose text it is
        self._warm = WarmTexts(self.cache, cache_bytes)
        self._no_output = ForwardOutput(logits=torch.zeros(0, spec.vocab_size, device=device))
        with inference():
            make = make_executor or backend.executor
            self._executor = make(spec, weights, self.cache, unused)

    def forward(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """One pass; keys and values of all rows are in the cache afterwards."""
        return self.play(Step(inputs=inputs), observe=observe)

    def play(
        self, step: Step, *, executor: Executor | None = None, share: float = 1.0, observe: Observer | None = None
    ) -> ForwardOutput:
        """Move rows of the cache, then run the pass: all that reads a weight goes through here, and all that changes a
        cache but `recall` and what measures passes.

        Args:
            executor: what runs the pass, bound to the same cache; None: the model itself.
            share: share of the model's weights that `executor` reads; used only by a paced model.

        Returns:
            what the pass gave; without one, no rows.
        """
        if step.move is not None:
            self.cache.move(step.move)
        if step.inputs is None:
            return self._no_output
        if step.inputs.num_slots > self.cache.end:
            self.cache.reserve(step.inputs.num_slots - self.cache.end)
        return self._run_paced(executor or self._executor, step.inputs, share, observe)

    def _run_paced(
        self, executor: Executor, inputs: ForwardInput, share: float, observe: Observer | None
    ) -> ForwardOutput:
        """A pass of `executor`, held to the pace for its rows and for the share of the weights that it reads."""
        began = perf_counter()
        output = executor.run(inputs, observe)
        if self._pace is not None:
            if output.logits.is_cuda:
                torch.cuda.synchronize(self.device)  # the stated time includes the computation
            share *= kept_share(self.spec, inputs.skipped | self._unused)
            wait_until(began + share * self._pace.step_s(len(inputs.token_ids)))
        return output

    @property
    def executor(self) -> Executor:
        """The executor, for callers that launch its kernels themselves."""
        return self._executor

    def adopt(self, token_ids: Sequence[int]) -> None:
        """Take over tokens whose keys and values are behind the text already."""
        self.play(Step(move=CacheMove(length=self.cache.committed_len, num_adopted=len(token_ids))))
        self.cached_ids.extend(token_ids)

    def forget(self, owner: str | None = None) -> None:
        """Empty the cache and drop the saved texts, all of them or only this owner's."""
        self._warm.forget(owner)
        self.sync(())
        self.owner = ""

    def close(self) -> None:
        """Drop all texts. No pass is run after."""
        self.forget()
        self._on_close()

    def recall(self, token_ids: Sequence[int], owner: str = "") -> None:
        """Bring the longest beginning of a text that was ever read for this owner, and is still known, into the cache.

        The present text is saved if more than LEAST_ROWS of its tokens have to leave the cache. What `read` then finds
        there depends only on the texts before, not on who drafted them.
        """
        is_own = owner == self.owner
        num_kept = shared_length(self.cached_ids, token_ids) if is_own else 0
        if is_own and num_kept == len(token_ids) == len(self.cached_ids):
            return  # what goes on with the present text changes nothing in what is saved, nor in its order
        num_saved = self._warm.find(token_ids, owner)
        if len(self.cached_ids) - num_kept > LEAST_ROWS:
            self._warm.save(self.cached_ids, self.owner)
        if is_own and num_saved <= num_kept:
            return
        self.sync(self.cached_ids[:num_kept])
        self.owner = owner  # no earlier: a text has the owner for whom it was read
        num_restored = self._warm.restore(token_ids, owner, num_kept)
        self.adopt(token_ids[num_kept:num_restored])

    def sync(self, token_ids: Sequence[int]) -> int:
        """Make the cache hold exactly `token_ids`; return how many of them it held already."""
        num_shared, *_ = self.read(token_ids)
        return num_shared

    def read(self, token_ids: Sequence[int]) -> Iterator[int]:
        """The same in wide passes: first how many tokens the cache held already, then after every pass how many it
        holds."""
        num_shared = shared_length(self.cached_ids, token_ids)
        del self.cached_ids[num_shared:]  # before the cache: an interrupt between may leave it longer, never shorter
        self.play(Step(move=CacheMove(length=num_shared)))
        yield num_shared
        for start in range(num_shared, len(token_ids), PREFILL_ROWS):
            rows = list(token_ids[start : start + PREFILL_ROWS])
            self.extend(rows, num_logit_rows=0)
            yield start + len(rows)

    def extend(self, token_ids: list[int], *, num_logit_rows: int) -> Tensor:
        """Append `token_ids`, return the last rows' logits."""
        return self.append(token_ids, num_logit_rows=num_logit_rows).logits

    def append(self, token_ids: list[int], *, num_logit_rows: int, taps: tuple[int, ...] = ()) -> ForwardOutput:
        """Run `token_ids` after the committed text and commit them all."""
        start = self.cache.committed_len
        inputs = ForwardInput(
            token_ids=token_ids,
            positions=list(range(start, start + len(token_ids))),
            first_slot=self.cache.end,
            prefix_len=start,
            num_logit_rows=num_logit_rows,
            taps=taps,
        )
        output = self.forward(inputs)
        self.commit(list(range(len(token_ids))), token_ids)
        return output

    def commit(self, rows: list[int], token_ids: Sequence[int]) -> None:
        """Commit tree rows, which hold `token_ids`, and forget the other rows."""
        assert len(rows) == len(token_ids), f"{len(rows)} rows for {len(token_ids)} tokens"
        self.keep(rows, token_ids)

    def keep(self, rows: list[int], token_ids: Sequence[int]) -> None:
        """Commit the first of these tree rows, which hold `token_ids`; the others stay as tree rows 0, 1, ..."""
        move = CacheMove(length=self.cache.committed_len, rows=tuple(rows), num_committed=len(token_ids))
        self.play(Step(move=move))
        self.cached_ids.extend(token_ids)

    def drop_rows(self) -> None:
        """Forget all rows behind the text."""
        self.play(Step(move=CacheMove(length=self.cache.committed_len)))


def wait_until(end: float) -> None:
    """Return at `end`, in seconds of perf_counter, or at once if that is past.

    A sleep overshoots by what the scheduler likes, so the last stretch is spent spinning.
    """
    sleep(max(0.0, end - perf_counter() - SPIN_S))
    while perf_counter() < end:
        pass
