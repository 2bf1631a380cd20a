"""The thread in which the engine works: one job after the other, one pass of the target at a time."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

from forerun.core.config import SamplingParams
from forerun.core.errors import ConfigError, ContextOverflowError, NumericalError
from forerun.core.steps import Generation
from forerun.server.protocol.errors import ApiError, internal, invalid
from forerun.server.tally import TextTally
from forerun.server.work.fair_queue import FairQueue
from forerun.server.work.job import Job, Mark, Order
from forerun.server.work.writing import start

if TYPE_CHECKING:  # torch, which is loaded in the engine's thread, after the server listens
    from forerun.engine.engine import Engine

logger = logging.getLogger(__name__)

PROBE_EVERY_S: Final = 2.0  # while the last pass failed
IDLE_S: Final = 60.0  # between looks at an empty queue, which wakes the thread by itself
MakeEngine = Callable[[], AbstractContextManager["Engine"]]


class EngineState(StrEnum):
    """Loading; ready: the last pass of the target worked; failing: it did not; ended: there is no engine any more."""

    LOADING = "loading"
    READY = "ready"
    FAILING = "failing"
    ENDED = "ended"


class EngineThread:
    """Opens the engine, plays what the queue has, and closes it.

    Args:
        make: opens the engine, in this thread.
        on_ready: called in this thread once the engine is there.
        on_text: called in this thread after each text, with its number in its job, and as a whole where it is one.
        on_end: called in this thread at its end, with the error that was its cause.
    """

    def __init__(
        self,
        make: MakeEngine,
        queue: FairQueue,
        *,
        on_ready: Callable[["Engine"], None],
        on_text: Callable[[Job, int, TextTally, Generation | None], None],
        on_end: Callable[[BaseException | None], None],
    ) -> None:
        self._make, self._queue = make, queue
        self._on_ready, self._on_text, self._on_end = on_ready, on_text, on_end
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._is_stopping = False
        self.state = EngineState.LOADING
        self.engine: Engine | None = None
        self.running: Job | None = None
        self._pass_began_s: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the job in progress."""
        self._is_stopping = True
        self._queue.close()

    def join(self, timeout_s: float | None) -> None:
        """Wait for the end, so long at most; None: however long. One that was never started has ended."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stalled_s(self) -> float:
        """How long the pass in progress has taken so far."""
        began = self._pass_began_s
        return 0.0 if began is None else monotonic() - began

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with self._make() as engine:
                self.engine, self.state = engine, EngineState.READY
                self._on_ready(engine)
                self._serve(engine)
        except BaseException as caught:  # noqa: BLE001 - whoever started the thread raises it again
            error = caught
        finally:
            self.state, self.engine = EngineState.ENDED, None
            self._on_end(error)

    def _serve(self, engine: "Engine") -> None:
        while not self._is_stopping:
            job = self._queue.take(PROBE_EVERY_S if self.state is EngineState.FAILING else IDLE_S)
            if job is not None:
                self._play_safely(engine, job)
            if self.state is EngineState.FAILING:
                self._probe(engine)

    def _play_safely(self, engine: "Engine", job: Job) -> None:
        """Write a job's texts; a failure is the job's alone."""
        self.running, job.begun_s = job, monotonic()
        try:
            for index, order in enumerate(job.orders):
                if job.early_end is not None or not self._write(engine, job, index, order):
                    return
            job.give(len(job.orders) - 1, Mark.OVER)
        except Exception as error:  # noqa: BLE001 - it becomes the caller's error, and is logged
            job.give(0, self._explain(error))
        finally:
            self.running, self._pass_began_s = None, None

    def _write(self, engine: "Engine", job: Job, index: int, order: Order) -> bool:
        """Write one text; False where the job was ended early: no pass begins after that."""
        tally, result = TextTally(len(order.prompt_ids)), None
        try:
            result = self._play(engine, job, index, order, tally)
        finally:
            self._on_text(job, index, tally, result)
        if result is not None:
            job.give(index, result)
        return result is not None and job.early_end is None

    def _play(self, engine: "Engine", job: Job, index: int, order: Order, tally: TextTally) -> Generation | None:
        """The whole text; None where the job was ended early."""
        self._pass_began_s = monotonic()
        with start(engine, order) as stream:
            for part in stream.prefill():
                tally.read(part)
                if job.early_end is not None:
                    return None
                self._pass_began_s = monotonic()
            for step in stream:
                tally.write(step)
                if job.early_end is not None:
                    return None
                self._pass_began_s = monotonic()
                job.give(index, step)
            self.state = EngineState.READY
            result = stream.result(times_plain=order.times_plain and len(self._queue) == 0)
        self._note(result)
        return result

    def _note(self, result: Generation) -> None:
        stats = result.stats
        self._queue.note_speed(stats.num_new_tokens, stats.prefill_s + stats.decode_s)

    def _explain(self, error: Exception) -> ApiError:
        """What a caller is told; what is no fault of the request is logged whole and makes the server not ready."""
        match error:
            case ApiError():
                return error
            case ContextOverflowError():
                return invalid("The prompt does not fit into the model's context.", code="context_length_exceeded")
            case ConfigError():
                return invalid("The model cannot be asked with these settings.", code="invalid_value")
            case NumericalError():
                self.state = EngineState.FAILING
                return ApiError(500, "The model's scores left no token to choose from.", code="nothing_to_choose")
            case _:
                self.state = EngineState.FAILING
                logger.error("the engine failed", exc_info=error)
                return internal()

    def _probe(self, engine: "Engine") -> None:
        """One token, to see whether the target works again; what failed may have been the request's own settings."""
        self._pass_began_s = monotonic()
        try:
            engine.stream([0], SamplingParams(max_new_tokens=1, ignore_eos=True)).result(times_plain=False)
            self.state = EngineState.READY
        except Exception as error:  # noqa: BLE001 - the server goes on, and says that it is not ready
            logger.warning("the target does not work: %s", error)
        finally:
            self._pass_began_s = None
