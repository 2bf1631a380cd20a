"""A model together with its key/value cache."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter, sleep
from typing import TypeAlias

import torch
from torch import Tensor

from forerun.core.mixers import PASS_ROWS
from forerun.core.model_spec import CacheFormat, ModelSpec
from forerun.core.pace import Pace
from forerun.core.shared_length import shared_length
from forerun.core.stop_flag import require_wanted
from forerun.core.sublayers import NOTHING, SkipSet, kept_share
from forerun.core.threads import inference
from forerun.model.backend import ModelBackend
from forerun.model.executor import CacheMove, Executor, ForwardInput, ForwardOutput, Observer, Step, Tell
from forerun.model.saved_prompts import BLOCK as FILE_TOKENS
from forerun.model.saved_prompts import PromptFolder, SavedPrompts
from forerun.model.tree_cache import TreeCache
from forerun.model.warm_texts import WarmTexts
from forerun.model.weights import WeightSource

PREFILL_ROWS = PASS_ROWS  # of one prefill pass: wide enough for the matrix code, small enough for its buffers
TOKENS_BETWEEN_SAVED = 1024  # of a text with states, which is continued where it was saved: at most so many are reread
SPIN_S = 0.2e-3  # a sleep of a few ms usually ends 0.1 to 0.2 ms late
MakeExecutor: TypeAlias = Callable[[TreeCache], Executor]
LEAST_ROWS = 16  # this many lost tokens can be read again in one pass, which costs little more than a pass of one row


class Runner:
    """A model, its cache, and the text in the cache. Earlier texts of the cache are saved, see `recall`.

    Invariant: `cached_ids` are the committed tokens of the cache, in order; only `sync`, `commit`, `adopt` and `recall`
    add to them.

    Args:
        weights: None if `make_executor` is given.
        capacity: slots of the cache, for a text and the rows behind it.
        num_rows: the most rows behind it; see `TreeCache`.
        pace: if given, every pass takes at least the pace's time for its rows.
        unused: sublayers whose weights are not loaded and that no pass runs, for a layer-skipped copy of a model.
        cache_format: of keys and values, see `TreeCache`.
        cache_bytes: limit on the bytes of saved texts.
        message_ends: token ids of which each ends a message of a conversation.
        make_executor: makes the executor on this cache; None: `backend.executor` does.
        tell: see `TreeCache`.
        on_close: called by `close`, to end the other ranks of the model.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: WeightSource | None,
        *,
        backend: ModelBackend,
        capacity: int,
        num_rows: int = 0,
        dtype: torch.dtype,
        device: str,
        pace: Pace | None = None,
        unused: SkipSet = NOTHING,
        cache_format: CacheFormat = "model",
        cache_bytes: int = 0,
        message_ends: Collection[int] = (),
        make_executor: MakeExecutor | None = None,
        tell: Tell = nullcontext,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.spec = spec
        self.device = device
        self.backend = backend
        self._pace = pace
        self._unused = unused
        self.cache = TreeCache(
            spec,
            capacity,
            dtype=dtype,
            device=device,
            format=cache_format,
            num_rows=num_rows,
            move_slots=backend.move_slots,
            tell=tell,
        )
        self.cached_ids: list[int] = []
        self.owner = ""  # of the text
        self._on_close = on_close
        self._message_ends = message_ends
        self._warm = WarmTexts(self.cache, cache_bytes)
        self._on_disk: SavedPrompts | None = None
        self._no_output = ForwardOutput(logits=torch.zeros(0, spec.vocab_size, device=device))
        with inference():
            if make_executor is not None:
                self.executor = make_executor(self.cache)
            else:
                assert weights is not None, "the backend's executor reads them"
                self.executor = backend.executor(spec, weights, self.cache, unused)

    def forward(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run one pass, which writes keys and values of all rows to the cache."""
        return self.play(Step(inputs=inputs), observe=observe)

    def play(
        self, step: Step, *, executor: Executor | None = None, share: float = 1.0, observe: Observer | None = None
    ) -> ForwardOutput:
        """Move rows of the cache, then run the pass.

        Every pass goes through here, and so does every change of the cache except those of `recall` and of
        measurements.

        Args:
            executor: runs the pass, bound to the same cache; None: the model's own executor.
            share: share of the model's weights that `executor` reads; used only by a paced model.

        Returns:
            the output of the pass; without a pass, an output of no rows.

        Raises:
            PassStopped: another thread has ended it, see `stopped_by`; its rows are not committed.
        """
        if step.move is not None:
            self.cache.move(step.move)
        if step.inputs is None:
            return self._no_output
        if step.inputs.num_slots > self.cache.end:
            self.cache.reserve(step.inputs.num_slots - self.cache.end)
        return self._run_paced(executor or self.executor, step.inputs, share, observe)

    def _run_paced(
        self, executor: Executor, inputs: ForwardInput, share: float, observe: Observer | None
    ) -> ForwardOutput:
        """Run a pass, then wait until it has taken the pace's time for its rows and its share of the weights."""
        began = perf_counter()
        output = executor.run(inputs, observe)
        require_wanted()
        if self._pace is not None:
            if output.logits.is_cuda:
                torch.cuda.synchronize(self.device)  # the pace's time includes the computation
            share *= kept_share(self.spec, inputs.skipped | self._unused)
            wait_until(began + share * self._pace.step_s(len(inputs.token_ids)))
        return output

    def adopt(self, token_ids: Sequence[int]) -> None:
        """Commit tokens whose keys and values are already in the slots after the text, in order."""
        self.play(Step(move=CacheMove(length=self.cache.committed_len, num_adopted=len(token_ids))))
        self.cached_ids.extend(token_ids)

    def save_on_disk(self, folder: PromptFolder) -> None:
        """From now on, texts are restored from this folder, and `save_text` saves them there."""
        self._on_disk = SavedPrompts(self.cache, folder)

    def save_text(self) -> Iterator[None]:
        """Save the text in the cache on disk, if texts are saved there; yields before every file that is written."""
        if self._on_disk is not None:
            yield from self._on_disk.save(self.cached_ids, self.owner)

    def forget(self, owner: str | None = None, *, on_disk: bool = False) -> None:
        """Empty the cache and drop the saved texts, all of them or only this owner's.

        Args:
            on_disk: this owner's texts on disk too.
        """
        if on_disk and self._on_disk is not None:
            self._on_disk.forget(owner or "")
        self._warm.forget(owner)
        self.sync(())
        self.owner = ""

    def close(self) -> None:
        """Drop all texts and end the other ranks. The runner cannot be used afterwards."""
        self.forget()
        self._on_close()

    def recall(self, token_ids: Sequence[int], owner: str = "") -> None:
        """Restore the longest prefix of this text that is saved for this owner into the cache.

        The present text is saved first if more than LEAST_ROWS of its tokens would be lost. The tokens that `read` then
        finds in the cache depend only on the earlier texts, not on which drafter was used for them.
        """
        is_own = owner == self.owner
        num_kept = self.cache.resumable(shared_length(self.cached_ids, token_ids)) if is_own else 0
        if is_own and num_kept == len(token_ids) == len(self.cached_ids):
            return  # the text only continues the present one, so the saved texts and their order stay as they are
        num_saved = self._warm.find(token_ids, owner, num_kept)
        num_missing = len(token_ids) - max(num_saved, num_kept)
        if self._on_disk is not None and num_missing >= FILE_TOKENS:  # else a file would add nothing
            num_saved = max(num_saved, self._on_disk.find(token_ids, owner))
        if len(self.cached_ids) - num_kept > LEAST_ROWS:
            self._warm.save(self.cached_ids, self.owner)
        if is_own and num_saved <= num_kept:
            return
        self.cut(num_kept)
        self.owner = owner  # only now: the text that was there before belongs to its own owner
        num_restored = self._warm.restore(token_ids, owner, num_kept)
        if self._on_disk is not None and num_restored < num_saved:
            num_restored = self._on_disk.restore(token_ids, owner, num_restored)
        self.adopt(token_ids[num_kept:num_restored])

    def cut(self, length: int) -> int:
        """Drop the tokens from `length` on, or all if no text can be resumed there; return how many are left."""
        length = self.cache.resumable(length)
        del self.cached_ids[length:]  # first, so that an interrupt never leaves the cache shorter than cached_ids
        self.play(Step(move=CacheMove(length=length)))
        return length

    def sync(self, token_ids: Sequence[int]) -> int:
        """Make the cache hold exactly `token_ids`; return how many of them it held before."""
        (num_shared, _), *_ = self.read(token_ids)
        return num_shared

    def read(
        self, token_ids: Sequence[int], taps: tuple[int, ...] = (), *, has_logits: bool = False
    ) -> Iterator[tuple[int, ForwardOutput]]:
        """As `sync`, but yields how many of the tokens the cache holds: at the start, and after every pass.

        It also yields the pass's output; at the start, an output of no rows.

        Args:
            taps: see `ForwardInput`.
            has_logits: all rows have logits; the next pass may overwrite them.
        """
        num_shared = self.cut(shared_length(self.cached_ids, token_ids))
        yield num_shared, self._no_output
        has_states = self.cache.mixer_rows is not None  # such a text is continued only where it was saved
        stops = stops_of(token_ids, num_shared, self._message_ends) if has_states else []
        for start in range(num_shared, len(token_ids), PREFILL_ROWS):
            rows = list(token_ids[start : start + PREFILL_ROWS])
            output = self.append(rows, num_logit_rows=len(rows) if has_logits else 0, taps=taps)
            while stops and stops[0] <= start + len(rows):
                self._warm.save(token_ids[: stops.pop(0)], self.owner)
            yield start + len(rows), output

    def extend(self, token_ids: list[int], *, num_logit_rows: int) -> Tensor:
        """Append `token_ids` to the text and return the logits of the last rows."""
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
        """Commit these tree rows, which hold `token_ids`, and drop all others."""
        assert len(rows) == len(token_ids), f"{len(rows)} rows for {len(token_ids)} tokens"
        self.keep(rows, token_ids)

    def keep(self, rows: list[int], token_ids: Sequence[int]) -> None:
        """Commit the first of these tree rows, which hold `token_ids`; the rest become tree rows 0, 1, ..."""
        move = CacheMove(length=self.cache.committed_len, rows=tuple(rows), num_committed=len(token_ids))
        self.play(Step(move=move))
        self.cached_ids.extend(token_ids)

    def drop_rows(self) -> None:
        """Drop all rows after the text."""
        self.play(Step(move=CacheMove(length=self.cache.committed_len)))


def stops_of(token_ids: Sequence[int], start: int, message_ends: Collection[int]) -> list[int]:
    """The lengths, ascending, at which a text is saved that is read from `start` on: at the ends of its messages, which
    the next turn and other conversations share, at its own end, and so often that no two are far apart.

    Few tokens behind one of them are read again instead, except behind the last message: a template may write an answer
    that follows it in another way later.
    """
    ends = [place + 1 for place in range(start, len(token_ids)) if token_ids[place] in message_ends]
    stops = [start]
    for end in (*ends, len(token_ids)):
        stops += range(stops[-1] + TOKENS_BETWEEN_SAVED, end, TOKENS_BETWEEN_SAVED)
        if end - stops[-1] > LEAST_ROWS or end == max(ends, default=0):
            stops.append(end)
    return stops[1:]


def wait_until(end: float) -> None:
    """Return at `end`, in seconds of perf_counter, or at once if that is past.

    A sleep ends late by an unpredictable amount, so the last SPIN_S are a busy loop.
    """
    sleep(max(0.0, end - perf_counter() - SPIN_S))
    while perf_counter() < end:
        pass
