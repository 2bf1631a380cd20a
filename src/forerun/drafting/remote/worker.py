"""The drafter process: it serves one target until that disconnects."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from forerun.core.errors import RankLostError
from forerun.drafting.remote.frames import KINDS, MAX_FAULTS, Wire
from forerun.drafting.remote.messages import Beat, Failure, Hello, Message, Setup, Spans
from forerun.drafting.remote.state_machines import DrafterEnd, Grower
from forerun.sampling.noise import KeyedNoise
from forerun.wires.frames import FrameReader

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.2  # heartbeat interval of a drafter that has a request and is not in a pass
SPANS_PER_MESSAGE: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDraft:
    """The parts of a drafter process.

    Args:
        hello: its first message.
        grower: makes the grower of trees for a target's settings.
        noise: makes the noise of a seed over the target's vocabulary.
    """

    hello: Hello
    grower: Callable[[Setup], Grower]
    noise: Callable[[int, int], KeyedNoise]


def serve(wire: Wire, draft: LoadedDraft) -> None:
    """Answer one target until it disconnects or sends only garbage; on failure, send the reason."""
    try:
        session = WorkerSession(draft, wire.send, perf_counter)
        while wire.is_open:
            session.receive(wire.receive())
            if session.num_faults > MAX_FAULTS:
                logger.warning("the target sent %d faulty frames: hanging up", session.num_faults)
                return
            rest_s = session.work()
            if rest_s != 0.0:
                wire.wait(rest_s)
    except Exception as error:
        is_known = isinstance(error, RankLostError)
        wire.send(KINDS.to_frame(Failure.of(str(error) if is_known else traceback.format_exc())))
        raise


class WorkerSession:
    """A session with one target. It never blocks; its callers wait.

    Args:
        send: sends a frame; False if that is not possible now.
        clock: returns seconds.
    """

    def __init__(self, draft: LoadedDraft, send: Callable[[bytes], bool], clock: Callable[[], float]) -> None:
        self._draft = draft
        self._send_frame = send
        self._clock = clock
        self._reader = FrameReader(KINDS)
        self._end: DrafterEnd | None = None
        self._is_traced = False
        self._spans: list[tuple[float, float]] = []
        self._last_sent = clock()
        self._send(draft.hello)

    @property
    def num_faults(self) -> int:
        """Faulty frames that the target has sent."""
        return self._reader.num_faults

    def receive(self, data: bytes) -> None:
        """Process received bytes."""
        for message in self._reader.feed(data):
            if self._end is not None:
                self._end.receive(message)
            elif isinstance(message, Setup):
                self._end = self._drafter_end(message)
                self._is_traced = message.policy.is_traced

    def work(self) -> float | None:
        """Do one step, if any; return the seconds until the next one, or None if only a message can bring work."""
        end = self._end
        if end is None:
            return None
        if end.idle_s() == 0:
            self._work(end)
        if not end.is_active:
            return None
        if self._clock() - self._last_sent > BEAT_S:
            self._send(Beat(request=end.request))
        idle_s = end.idle_s()
        return BEAT_S if idle_s is None else min(idle_s, BEAT_S)

    def _drafter_end(self, setup: Setup) -> DrafterEnd:
        def noise_of(seed: int | None) -> KeyedNoise | None:
            return None if seed is None else self._draft.noise(seed, setup.target_vocab_size)

        return DrafterEnd(self._draft.grower(setup), setup, make_noise=noise_of, clock=self._clock)

    def _work(self, end: DrafterEnd) -> None:
        began = self._clock()
        num_expansions = end.num_expansions
        proposals = end.work()
        if self._is_traced and end.num_expansions > num_expansions:
            self._spans.append((began, self._clock()))
        for proposal in proposals:
            self._send(proposal)
        if len(self._spans) >= SPANS_PER_MESSAGE or (self._spans and proposals):
            self._send(Spans(request=end.request, times=tuple(self._spans)))
            self._spans.clear()

    def _send(self, message: Message) -> None:
        if self._send_frame(KINDS.to_frame(message)):
            self._last_sent = self._clock()
