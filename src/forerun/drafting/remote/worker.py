"""A drafter's process: serve one target until it hangs up."""

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol

from forerun.drafting.remote.frames import MAX_FAULTS, FrameReader, to_frame
from forerun.drafting.remote.messages import Beat, Failure, Hello, Message, Setup, Spans
from forerun.drafting.remote.protocol import DrafterEnd, Grower
from forerun.sampling.noise import KeyedNoise

logger = logging.getLogger(__name__)

BEAT_S: Final = 0.2  # a drafter with a request is never silent for longer, unless it is at work
SPANS_PER_MESSAGE: Final = 64


class Wire(Protocol):
    """Bytes to and from one peer, as `wires.channel` carries them."""

    @property
    def is_open(self) -> bool: ...

    def send(self, data: bytes) -> bool: ...

    def receive(self) -> bytes: ...

    def wait(self, timeout_s: float | None) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDraft:
    """What a drafter's process has to offer.

    Args:
        hello: who it is.
        grower: a grower of the trees that a target asks for.
        noise: the noise of a seed over the target's vocabulary.
    """

    hello: Hello
    grower: Callable[[Setup], Grower]
    noise: Callable[[int, int], KeyedNoise]


def serve(wire: Wire, draft: LoadedDraft) -> None:
    """Answer one target until it hangs up or sends nothing but garbage; say why, should it fail."""
    try:
        _answer(wire, draft)
    except Exception:
        wire.send(to_frame(Failure(text=traceback.format_exc())))
        raise


def _answer(wire: Wire, draft: LoadedDraft) -> None:
    reader = FrameReader()
    wire.send(to_frame(draft.hello))
    session: Session | None = None
    while wire.is_open:
        for message in reader.feed(wire.receive()):
            if isinstance(message, Setup) and session is None:
                session = Session(wire, draft, message)
            elif session is not None:
                session.end.receive(message)
        if reader.num_faults > MAX_FAULTS:
            logger.warning("the target sent %d faulty frames: hanging up", reader.num_faults)
            return
        if session is None:
            wire.wait(None)
        else:
            session.do_next()


class Session:
    """One target's wishes, and the work for them."""

    def __init__(self, wire: Wire, draft: LoadedDraft, setup: Setup) -> None:
        self._wire, self._setup = wire, setup
        self._spans: list[tuple[float, float]] = []
        self._last_sent = 0.0
        self.end = DrafterEnd(
            draft.grower(setup),
            setup,
            make_noise=lambda seed: None if seed is None else draft.noise(seed, setup.target_vocab_size),
            clock=perf_counter,
        )

    def do_next(self) -> None:
        """One piece of work, or a wait for the next message or the time to give a sign of life."""
        idle_s = self.end.idle_s()
        if idle_s == 0:
            self._work()
        elif self.end.is_active:
            self._wire.wait(BEAT_S if idle_s is None else min(idle_s, BEAT_S))
        else:
            self._wire.wait(None)
        if self.end.is_active and perf_counter() - self._last_sent > BEAT_S:
            self._send(Beat(request=self.end.request))

    def _work(self) -> None:
        began, num_expansions = perf_counter(), self.end.num_expansions
        proposals = self.end.work()
        if self._setup.is_traced and self.end.num_expansions > num_expansions:
            self._spans.append((began, perf_counter()))
        for proposal in proposals:
            self._send(proposal)
        if len(self._spans) >= SPANS_PER_MESSAGE or (self._spans and proposals):
            self._send(Spans(request=self.end.request, times=tuple(self._spans)))
            self._spans.clear()

    def _send(self, message: Message) -> None:
        if self._wire.send(to_frame(message)):
            self._last_sent = perf_counter()
