"""The thread that runs the engine, one job at a time."""

import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

from forerun.core.config import SamplingParams
from forerun.core.errors import ConfigError, ContextOverflowError, GrammarError, NumericalError, RankLostError
from forerun.core.steps import Generation
from forerun.server.metrics import TextTally
from forerun.server.protocols.errors import ApiError, internal, invalid
from forerun.server.work.chats import sentence
from forerun.server.work.engine_call import EngineCall
from forerun.server.work.fair_queue import FairQueue
from forerun.server.work.job import Event, Job, Mark, ReadProgress

if TYPE_CHECKING:  # imports torch, which is loaded in the engine's thread after the server listens
    from forerun.engine.engine import Engine

logger = logging.getLogger(__name__)

PROBE_EVERY_S: Final = 2.0  # between probes after a failed pass
BETWEEN_LINES_S: Final = 10.0  # about a prompt that takes long
IDLE_S: Final = 60.0  # timeout for an empty queue; a new job wakes the thread at once
RANK: Final = re.compile(r"rank \d+ of (the )?\w+")
MakeEngine = Callable[[], AbstractContextManager["Engine"]]


class EngineState(StrEnum):
    """State of the engine. It is ready or failing by the result of the target's last pass."""

    LOADING = "loading"
    READY = "ready"
    FAILING = "failing"
    ENDED = "ended"


class EngineThread:
    """Opens the engine, runs the jobs in the queue, and closes the engine.

    Args:
        make: opens the engine, in this thread.
        on_ready: called in this thread once the engine is open.
        on_text: called in this thread after each text: with the job, the text's index in it, the token counts, and the
            result, or None if the text was ended early.
        on_end: called in this thread when it ends, with the error that caused it, if any.
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
        self._make = make
        self._queue = queue
        self._on_ready = on_ready
        self._on_text = on_text
        self._on_end = on_end
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._is_stopping = False
        self.state = EngineState.LOADING
        self.engine: Engine | None = None
        self.running: Job | None = None
        self._pass_began_s: float | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the job in progress."""
        self._is_stopping = True
        self._queue.close()

    def join(self, timeout_s: float | None) -> None:
        """Wait for the thread to end, at most `timeout_s`. Returns at once if it was never started."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stalled_s(self) -> float:
        """Seconds that the pass in progress has taken so far."""
        began = self._pass_began_s
        return 0.0 if began is None else monotonic() - began

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with self._make() as engine:
                self.engine = engine
                self.state = EngineState.READY
                self._on_ready(engine)
                self._serve(engine)
        except BaseException as caught:  # noqa: BLE001 - the code that started the thread raises it again
            error = caught
        finally:
            self.state = EngineState.ENDED
            self.engine = None
            self._on_end(error)

    def _serve(self, engine: "Engine") -> None:
        while not self._is_stopping:
            job = self._queue.take(PROBE_EVERY_S if self.state is EngineState.FAILING else IDLE_S)
            if job is not None:
                self._play_safely(engine, job)
            if self.state is EngineState.FAILING:
                self._probe(engine)
            else:
                engine.save_prompts(lambda: len(self._queue) == 0 and not self._is_stopping)

    def _play_safely(self, engine: "Engine", job: Job) -> None:
        """Generate a job's texts. A failure ends only this job, unless a rank is lost, since it cannot be replaced."""
        self.running = job
        job.begun_s = monotonic()
        try:
            for index, call in enumerate(job.calls):
                if job.early_end is not None or not self._write(engine, job, index, call):
                    return
            job.give(Event(len(job.calls) - 1, Mark.OVER))
        except RankLostError:
            raise
        except Exception as error:  # noqa: BLE001 - it becomes the caller's error, and is logged
            job.give(Event(0, self._explain(error)))
        finally:
            self.running = None
            self._pass_began_s = None

    def _write(self, engine: "Engine", job: Job, index: int, call: EngineCall) -> bool:
        """Generate one text; False if the job was ended early, after which no pass starts."""
        tally = TextTally(len(call.prompt.ids))
        result = None
        try:
            result = self._play(engine, job, index, call, tally)
        finally:
            self._on_text(job, index, tally, result)
        if result is not None:
            job.give(Event(index, result))
        return result is not None and job.early_end is None

    def _play(self, engine: "Engine", job: Job, index: int, call: EngineCall, tally: TextTally) -> Generation | None:
        """Generate one text and return the result, or None if the job was ended early."""
        self._pass_began_s = monotonic()
        prompt = call.prompt
        with engine.stream(
            prompt.ids,
            call.params,
            drafter=call.drafter,
            prediction=prompt.prediction,
            owner=call.owner,
            shown_tokens=prompt.shown_tokens,
            thoughts=prompt.thoughts,
        ) as stream:
            job.give_up = stream.give_up
            began_s = monotonic()
            next_line_s = began_s + BETWEEN_LINES_S
            for part in stream.prefill():
                tally.read(part)
                if monotonic() > next_line_s:
                    logger.info("%s: read %s of %s tokens", job.label, f"{part.num_read:,}", f"{part.num_tokens:,}")
                    next_line_s += BETWEEN_LINES_S
                if call.shows_progress:
                    job.give(Event(index, ReadProgress(part, monotonic() - began_s)))
                if job.early_end is not None:
                    return None
                self._pass_began_s = monotonic()
            if call.only_reads:
                stream.cancel()
            for step in stream:
                tally.write(step)
                if job.early_end is not None:
                    return None
                self._pass_began_s = monotonic()
                job.give(Event(index, step))
            if job.early_end is not None:
                return None
            self.state = EngineState.READY
            result = stream.result(times_plain=call.times_plain and len(self._queue) == 0)
        self._queue.told_speed(result.stats.num_new_tokens, result.stats.prefill_s + result.stats.decode_s)
        return result

    def _explain(self, error: Exception) -> ApiError:
        """The error for the client. A failure that the request did not cause makes the server not ready."""
        match error:
            case ApiError():
                return error
            case ContextOverflowError():
                return invalid("The prompt does not fit into the model's context.", code="context_length_exceeded")
            case GrammarError():
                return invalid(sentence(error), code="invalid_grammar")
            case ConfigError():
                return invalid("The model does not support these settings.", code="invalid_value")
            case NumericalError():
                self.state = EngineState.FAILING
                return ApiError(500, "The model's scores leave no token to choose from.", code="nothing_to_choose")
            case _:
                self.state = EngineState.FAILING
                logger.error("the engine failed", exc_info=error)
                return internal()

    @staticmethod
    def why_ended(error: BaseException) -> ApiError:
        """The error for clients of an engine that ended; the log has the whole of it."""
        lost = "a rank" if (found := RANK.match(str(error))) is None else found[0]
        match error:
            case RankLostError():
                return ApiError(500, f"The engine has ended, because it lost {lost}.", code="rank_lost")
            case _:
                return internal()

    def _probe(self, engine: "Engine") -> None:
        """Generate one token to see whether the target works; the failure may be due to the request's settings."""
        self._pass_began_s = monotonic()
        try:
            engine.stream([0], SamplingParams(max_new_tokens=1, ignore_eos=True)).result(times_plain=False)
            self.state = EngineState.READY
        except RankLostError:
            raise
        except Exception as error:  # noqa: BLE001 - the server continues, and reports that it is not ready
            logger.warning("the target does not work: %s", error)
        finally:
            self._pass_began_s = None
