"""The service for one model, as routes use it: the engine's thread, the queue, prompts, metrics and state."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forerun.core.steps import PLAIN, Generation
from forerun.server.config import ServerConfig
from forerun.server.guard.refusal_log import in_a_line
from forerun.server.metrics import ServerMetrics, TextTally
from forerun.server.protocols.errors import ApiError, loading, stopping
from forerun.server.work.engine_call import EngineCall
from forerun.server.work.engine_thread import EngineState, EngineThread, MakeEngine
from forerun.server.work.fair_queue import FairQueue
from forerun.server.work.job import EarlyEnd, Job
from forerun.server.work.prompt_history import PromptHistory
from forerun.server.work.prompts import PromptReader

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine

logger = logging.getLogger(__name__)

LONGEST_PASS_S: Final = 10.0  # how long shutdown waits for the pass in progress


class Service:
    """Shares one engine among many clients. Use it in the event loop's thread only.

    Args:
        target: the model name given to the engine.
        drafter_name: the drafter, as named on the command line.
    """

    def __init__(
        self, config: ServerConfig, make_engine: MakeEngine, *, target: str, drafter_name: str = "auto"
    ) -> None:
        self.config = config
        self.model_name = config.model_name or short_name_of(target)
        self.target = target
        self.created = int(time.time())
        self.drafter_name = drafter_name
        self._make_engine = make_engine
        self._make_thread()
        self.metrics = ServerMetrics(
            num_waiting=lambda: len(self.queue),
            num_running=lambda: float(self.thread.running is not None),
            is_ready=lambda: float(self.is_ready),
        )
        self.history = PromptHistory()
        self.is_draining = False
        self.gained: bool | None = None  # whether guesses made the newest measured answer faster; None: none was
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Future[None] | None = None
        self._prompts: PromptReader | None = None
        self._jobs: set[Job] = set()
        self._why_ended: ApiError | None = None

    def _make_thread(self) -> None:
        self.queue = FairQueue(self.config)
        self.thread = EngineThread(
            self._make_engine,
            self.queue,
            on_ready=self._on_engine_open,
            on_text=self._on_text_end,
            on_end=self._on_engine_end,
        )

    def start(
        self,
        *,
        on_ready: Callable[[], None] = lambda: None,
        on_end: Callable[[BaseException | None], None] = lambda error: None,
    ) -> None:
        """Start to load the model. May be called again after `unload` or when the engine has ended.

        Args:
            on_ready: called in the loop's thread once requests can be answered.
            on_end: called in the loop's thread when the engine has ended, with the error that caused it, if any.
        """
        self._loop = asyncio.get_running_loop()
        self._on_ready = on_ready
        self._on_end = on_end
        if self.thread.state is EngineState.ENDED:
            self._prompts = self._why_ended = None
            self._make_thread()
        self._opening = self._loop.create_future()
        self.thread.start()

    async def opened(self) -> None:
        """Wait until the model is loaded; raises the error if that fails."""
        assert self._opening is not None, "`start` was called"
        await asyncio.shield(self._opening)

    async def unload(self) -> None:
        """Free the model's memory. No request may be in progress."""
        self.thread.stop()
        await asyncio.to_thread(self.thread.join, None)
        await self._close_prompts()

    async def _close_prompts(self) -> None:
        if self._prompts is not None:
            await self._prompts.close()
            self._prompts = None

    @property
    def is_loaded(self) -> bool:
        """True while the engine is open and accepts requests."""
        return self._prompts is not None and self.thread.state in (EngineState.READY, EngineState.FAILING)

    @property
    def is_on_gpu(self) -> bool:
        """True if the model is loaded on a GPU."""
        return self.thread.engine is not None and self.thread.engine.config.device.startswith("cuda")

    @property
    def engine(self) -> "Engine":
        """The engine; raises ApiError if it is not open."""
        if self.thread.state is EngineState.ENDED:
            raise self._why_ended or stopping()
        if self.thread.engine is None or self._prompts is None:
            raise loading()
        return self.thread.engine

    @property
    def prompts(self) -> PromptReader:
        """The prompt reader; raises ApiError while no model is loaded."""
        if self._prompts is None:
            raise loading()
        return self._prompts

    @property
    def is_loading(self) -> bool:
        """True until the first request can be answered."""
        return self._prompts is None and self.thread.state is not EngineState.ENDED

    @property
    def state(self) -> str:
        """State as one word: that of the engine, or "stopping" or "stalled"."""
        if self.is_draining:
            return "stopping"
        if self.is_loading:
            return EngineState.LOADING.value
        return "stalled" if self.thread.stalled_s() > self.config.max_stalled_s else self.thread.state.value

    @property
    def is_ready(self) -> bool:
        """True if the last pass of the target succeeded and new requests are accepted."""
        return self.state == EngineState.READY.value

    def require_room(self, owner: str) -> None:
        """Raise ApiError if the queue is full for this key. Called before the prompt is tokenized, which is slow."""
        with self._counting_refusals():
            self.queue.require_room(owner)

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self.metrics.refuse(error.code)
            raise

    def submit(
        self,
        calls: Sequence[EngineCall],
        *,
        owner: str,
        on_slow_reader: Callable[[], object] | None,
        label: str = "",
        max_s: float | None = None,
        is_admitted: bool = False,
    ) -> Job:
        """Queue texts for generation.

        Args:
            label, is_admitted: see `Job`.
            max_s: seconds until the last token; None: those of the config.
            on_slow_reader: called when the job ends because its reader was too slow; None: no limit on unread events.

        Raises:
            ApiError: the queue is full, or the server is stopping.
        """
        max_unread = None if on_slow_reader is None else self.config.max_unread_events
        job = Job(calls, owner=owner, max_unread=max_unread, label=label, is_admitted=is_admitted)
        with self._counting_refusals():
            if self.is_draining or self.thread.state is EngineState.ENDED:
                raise self._why_ended or stopping()
            self.queue.put(job)
        assert self._loop is not None, "requests come after `start`"
        seconds = self.config.max_request_s if max_s is None else max_s
        deadline = self._loop.call_later(seconds, job.end, EarlyEnd.DEADLINE)

        def forget() -> None:
            deadline.cancel()
            self._jobs.discard(job)
            if job.early_end is not None:
                self.queue.remove(job)
                self.metrics.end(job.early_end.value)
            elif job.error is not None:
                self.metrics.end("error")
            if job.early_end is EarlyEnd.SLOW_READER and on_slow_reader is not None:
                on_slow_reader()

        self._jobs.add(job)
        job.on_over = forget
        return job

    def drain_soon(self) -> None:
        """Call `drain` from another thread or a signal handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Accept no more requests, and end those that still run after `drain_s`."""
        if not self.is_draining and self._loop is not None:
            self.is_draining = True
            self._loop.call_later(self.config.drain_s, self._end_all)

    def _end_all(self) -> None:
        for job in list(self._jobs):
            job.end(EarlyEnd.SHUTDOWN, self._why_ended)

    async def end(self) -> None:
        """End all jobs, the engine and the prompt reader."""
        self.is_draining = True
        self._end_all()
        self.thread.stop()
        patience_s = 0.0 if self.thread.engine is None else LONGEST_PASS_S  # loading cannot be interrupted
        await asyncio.to_thread(self.thread.join, patience_s)
        await self._close_prompts()

    def _on_engine_open(self, engine: "Engine") -> None:
        """Called by the engine's thread."""
        assert self._loop is not None, "the thread was started by `start`"
        asyncio.run_coroutine_threadsafe(self._open_prompts(engine), self._loop).add_done_callback(
            self._on_prompts_open
        )

    def _on_prompts_open(self, beginning: Future[None]) -> None:
        """End the server with the error if opening the prompt reader failed."""
        if not beginning.cancelled() and (error := beginning.exception()) is not None:
            self._on_engine_end(error)

    async def _open_prompts(self, engine: "Engine") -> None:
        prompts = PromptReader(engine, self.config)
        await prompts.start()
        self._prompts = prompts
        self._settle(None)
        self._on_ready()

    def _on_text_end(self, job: Job, index: int, tally: TextTally, result: Generation | None) -> None:
        """Called by the engine's thread, before the end of the text is passed on."""
        assert self._loop is not None and job.begun_s is not None, "a job in progress has begun"
        queue_s = max(0.0, job.begun_s - job.queued_s) if index == 0 else 0.0
        self._loop.call_soon_threadsafe(self.metrics.count, tally, result, queue_s)
        was_plain = PLAIN in (job.calls[index].drafter, self.drafter_name)
        logger.info("%s", in_a_line(line_about(job, tally, result)))
        if result is not None and not was_plain and (gained := result.stats.gained) is not None:
            self.gained = gained

    def _settle(self, error: BaseException | None) -> None:
        """Wake the waiters of `opened`."""
        if self._opening is None or self._opening.done():
            return
        if error is None:
            self._opening.set_result(None)
        else:
            self._opening.set_exception(error)
            self._opening.exception()  # mark as retrieved, since perhaps nobody waits

    def _on_engine_end(self, error: BaseException | None) -> None:
        """Called by the engine's thread."""
        assert self._loop is not None, "the thread was started by `start`"
        self._loop.call_soon_threadsafe(self._end_with, error)

    def _end_with(self, error: BaseException | None) -> None:
        self._why_ended = None if error is None else self.thread.why_ended(error)
        self._end_all()
        self._settle(error)
        self._on_end(error)


def line_about(job: Job, tally: TextTally, result: Generation | None) -> str:
    """A line for the log about a text that has ended."""
    read = f"{tally.num_read:,} prompt tokens" + (f" ({tally.num_reused:,} cached)" if tally.num_reused else "")
    written = f"{tally.num_written:,} written"
    if result is None:
        return f"{job.label}: {read}, {written}, ended early ({job.early_end or 'error'})"
    stats = result.stats
    reason = result.finish_reason.value
    speed = f" in {stats.decode_s:.1f} s ({stats.tokens_per_s:.1f} tokens/s)" if stats.decode_s else ""
    return f"{job.label}: {read} in {stats.prefill_s:.1f} s, {written}{speed}, {reason}"


def short_name_of(target: str) -> str:
    """The model's name for clients: only the last part of a path, so that clients do not see the folder."""
    path = Path(target)
    return path.resolve().name if path.exists() else target
