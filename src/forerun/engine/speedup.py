"""Timed plain rounds within drafted requests, the baseline of the speed-up.

They use the same loop as drafted rounds, on the request's own text, at about the same time, on all cores that plain
decoding uses.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Final

import torch

from forerun.core.errors import ContextOverflowError, NumericalError
from forerun.core.steps import Speedup
from forerun.decoding.decoder import Decoder, Request, Round, Rounds, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import PlainStretches
from forerun.engine.stream import Compare
from forerun.engine.threads_and_cores import CorePlacement
from forerun.model.pass_times import measure_pace, time_pass
from forerun.model.runner import Runner
from forerun.speculation.referee.plain_times import SHARE, PlainTimes, Stretch, speedup_of

FEW_TOKENS = 64
MANY_TOKENS = 320
SLOW_PASS_S = 5e-3
LONGEST_AFTERWARDS_S: Final = 0.3  # or the share of time allowed for stretches, whichever is larger


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainBaseline:
    """An engine's plain decoding, the reference for its drafter.

    Args:
        decoders: the target's decoders without a drafter.
    """

    target: Runner
    decoders: Sequence[Decoder]
    cores: CorePlacement
    max_length: int
    times: PlainTimes

    @classmethod
    def of(
        cls, target: Runner, decoders: Sequence[Decoder], cores: CorePlacement, max_length: int, context_s: float
    ) -> "PlainBaseline":
        """The baseline of a target; `context_s` is the additional time of a pass per token of context."""
        return cls(target=target, decoders=decoders, cores=cores, max_length=max_length, times=PlainTimes(context_s))

    def stretches(self, drafters: Drafters, request: Request) -> PlainStretches | None:
        """The timed plain rounds among the drafted ones of a request.

        None if the text's bits could depend on the number of threads, because plain rounds have more threads. None also
        with penalties on the answer only: a restarted drafter treats the text so far as prompt, does not count it, and
        guesses worse until the end.
        """
        is_safe = self.target.backend.thread_exact or not self.cores.every
        if not is_safe or request.params.presence_penalty != 0.0 or request.params.frequency_penalty != 0.0:
            return None
        return PlainStretches(self.times, self.cores.everywhere, drafters, request)

    def compare(self, request: Request) -> Compare:
        """A function that returns a request's speed-up; it may time plain rounds after the text."""
        began = perf_counter()
        prompt_ids = request.prompt_ids

        def compare(token_ids: Sequence[int], num_rounds: int, decode_s: float, times_plain: bool) -> Speedup | None:
            text = [*prompt_ids, *token_ids]
            room = self.max_length - len(text)
            if times_plain and room > 0 and not self.times.has_enough(began):
                self.target.sync(self.target.cached_ids[: len(text) - 1])  # the last round may have cached more tokens
                until = perf_counter() + max(LONGEST_AFTERWARDS_S, SHARE * decode_s)
                params = replace(request.params, prompt_logprobs=None)  # they have been read
                with suppress(NumericalError, ContextOverflowError):
                    rounds = play(self.decoders, replace(request, prompt_ids=text, params=params), room)
                    self.cores.everywhere(lambda: self._time(rounds, len(text), began, until))
            plain = self.times.since(began, len(prompt_ids) + len(token_ids) / 2)
            return speedup_of(len(token_ids), num_rounds, decode_s, plain)

        return compare

    def _time(self, rounds: Rounds, context: int, request_began: float, until: float) -> None:
        """Time these rounds until the request has enough samples, or until the deadline."""
        stretch = Stretch(self.times)
        began = perf_counter()
        for played in rounds:
            if isinstance(played, Round):
                ended = perf_counter()
                stretch.told(ended, ended - began, context)
                context += 1
                if self.times.has_enough(request_began) or ended > until:
                    break
            began = perf_counter()
        rounds.close()


@torch.inference_mode()
def context_cost(runner: Runner) -> float:
    """Additional seconds of a one-row pass per token of context. 0 for slow passes, in which the weights dominate and
    which would take long to measure. Empties the cache.
    """
    if time_pass(runner, 1) > SLOW_PASS_S:
        return 0.0
    few = min(FEW_TOKENS, runner.cache.capacity // 2)
    many = min(MANY_TOKENS, runner.cache.capacity - 1)
    few_s, many_s = (measure_pace(runner, (1,), context=context).step_s(1) for context in (few, many))
    return max(0.0, many_s - few_s) / max(1, many - few)
