"""Plain rounds of drafted requests, timed: what drafting gains is told by them.

They go through the loop that drafted rounds go through, on the request's own text, about the same time, and on all the
cores that plain decoding would have.
"""

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Final, TypeAlias

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.core.steps import DrafterState, Speedup
from forerun.drafting.drafter import Drafter
from forerun.drafting.none import NoneDrafter
from forerun.engine.loop import Round, TargetSide, decode, play_round
from forerun.engine.placement import CorePlacement
from forerun.engine.stream import Compare
from forerun.model.runner import Runner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.plain_times import ENOUGH, SHARE, STRETCH, UNCOUNTED, PlainTimes, speedup_of

if TYPE_CHECKING:
    from forerun.engine.device_decoder import DeviceDecoder

Rounds: TypeAlias = Generator[Round, None, None]
LONGEST_AFTERWARDS_S: Final = 0.3  # or the share of the time that stretches may take, whichever is more


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainBaseline:
    """An engine's plain decoding, beside which its drafter is measured.

    Args:
        on_device: decodes plainly in rounds that a GPU plays by itself, where requests are decoded so.
    """

    target: Runner
    on_device: "DeviceDecoder | None"
    cores: CorePlacement
    max_length: int
    times: PlainTimes = field(default_factory=PlainTimes)

    def stretches(self, drafter: Drafter, params: SamplingParams, noise: KeyedNoise | None) -> "PlainStretches | None":
        """What times plain rounds among the drafted ones of a request.

        None where the bits of the text could depend on the number of threads, which plain rounds have more of.
        """
        is_safe = self.target.thread_exact or not self.cores.every
        return PlainStretches(self, drafter, params, noise) if is_safe else None

    def compare(self, prompt_ids: list[int], params: SamplingParams, noise: KeyedNoise | None, seed: int) -> Compare:
        """How a request's stream learns its speed-up: plain rounds behind the text are timed too."""
        began = perf_counter()

        def compare(token_ids: Sequence[int], num_rounds: int, decode_s: float) -> Speedup | None:
            text = [*prompt_ids, *token_ids]
            num_missing = UNCOUNTED + ENOUGH - len(self.times.near(began))
            num_wanted = min(num_missing, self.max_length - len(text))
            if num_wanted > UNCOUNTED:
                until = perf_counter() + max(LONGEST_AFTERWARDS_S, SHARE * decode_s)
                with suppress(NumericalError):
                    self.cores.everywhere(
                        lambda: self._time(self._decode(text, params, noise, seed, num_wanted), until)
                    )
            return speedup_of(len(token_ids), num_rounds, decode_s, self.times.near(began))

        return compare

    def _decode(
        self, text: list[int], params: SamplingParams, noise: KeyedNoise | None, seed: int, num_tokens: int
    ) -> Rounds:
        """Go on from a text plainly, as an engine without a drafter would."""
        self.target.sync(text[:-1])

        def on_host(token_ids: list[int], num_left: int) -> Rounds:
            drafter = NoneDrafter()
            drafter.begin(token_ids, params, noise)
            side = TargetSide(self.target, params, token_ids, noise)
            return decode(side, drafter, near_tie=0.0, num_tokens=num_left)

        if self.on_device is None or params.shapes_scores:
            return on_host(text, num_tokens)
        self.on_device.begin(text, params, seed)
        return self.on_device.decode(near_tie=0.0, num_tokens=num_tokens, otherwise=on_host)

    def _time(self, rounds: Rounds, until: float) -> None:
        """Note what these rounds take, until then or until they end."""
        number, began = 0, perf_counter()
        for _ in rounds:
            ended = perf_counter()
            if number >= UNCOUNTED:
                self.times.note(ended, ended - began)
            if ended > until:
                break
            number, began = number + 1, perf_counter()
        rounds.close()


class PlainStretches:
    """A few plain rounds in a row, among the drafted ones of a request, whenever their share of the time allows."""

    def __init__(
        self, baseline: PlainBaseline, drafter: Drafter, params: SamplingParams, noise: KeyedNoise | None
    ) -> None:
        self._baseline, self._times = baseline, baseline.times
        self._drafter, self._params, self._noise = drafter, params, noise

    @property
    def is_due(self) -> bool:
        """True where a stretch is to be played now."""
        return self._times.is_due

    def pass_by(self, seconds: float) -> None:
        """A drafted round went by."""
        self._times.pass_by(seconds)

    def play(self, target: TargetSide, near_tie: float) -> Rounds:
        """One stretch, the drafter paused. Its tokens are part of the text."""
        began, baseline = perf_counter(), self._baseline
        self._drafter.end()
        with target.without_passengers():
            for number in range(STRETCH):
                done, seconds = baseline.cores.everywhere(lambda: play_plainly(target, near_tie))
                if number >= UNCOUNTED:
                    self._times.note(perf_counter(), seconds)
                yield done
        self._drafter.begin(target.token_ids, self._params, self._noise)
        while self._drafter.prefill():
            pass
        self._times.spend(perf_counter() - began)


def play_plainly(target: TargetSide, near_tie: float) -> tuple[Round, float]:
    """One plain round, and the seconds that it took."""
    drafter = NoneDrafter()
    drafter.root = target.root
    began = perf_counter()
    done = play_round(target, drafter, near_tie)
    seconds = perf_counter() - began
    return replace(done, stats=replace(done.stats, drafter=DrafterState.PAUSED)), seconds
