"""Decoding in rounds that the device plays by itself; the host launches them ahead and reads what came of them."""

import math
from collections import deque
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from forerun.backends.gpu.rounds import DeviceRounds, fits
from forerun.backends.gpu.tree.device_tree import RoundOutcome, read_outcome
from forerun.core.config import SamplingParams
from forerun.core.steps import StepStats
from forerun.core.timing import Span
from forerun.decoding.decoder import Decoder, NothingToChooseError, Request, Round, Rounds
from forerun.decoding.prefill import prefill
from forerun.drafting.drafter import RoundPlan
from forerun.drafting.lookup_chain import LookupChain
from forerun.model.measure import measure_pace
from forerun.model.runner import Runner
from forerun.speculation.depth_rule import DepthRule

ROUNDS_AHEAD = 2  # under way at a time, the one that is waited for included
ROUNDS_PER_LESSON = 8  # between two updates of what looked-up tokens are worth
MEASURING_S = 0.1


@dataclass(slots=True)
class Flight:
    """A round under way."""

    depth: int
    launched: float
    outcome: Tensor  # on the host, complete once `landed` has happened
    landed: torch.cuda.Event | None  # None: it is complete
    is_usual: bool  # no kernel was compiled and no graph recorded meanwhile

    def wait(self) -> RoundOutcome:
        if self.landed is not None:
            self.landed.synchronize()
        return read_outcome(self.outcome)


class DeviceDecoder(Decoder):
    """Decodes on the device, as `decoding.host_loop` does with the host between all steps.

    The text is the same: a token is a function of the text before it and of the seed. Only requests whose scores are
    not shaped are for it, see `SamplingParams.shapes_scores`.
    """

    def __init__(self, rounds: DeviceRounds) -> None:
        self._rounds, self._device = rounds, torch.device(rounds.target.runner.device)
        config, draft = rounds.config, rounds.draft
        self._max_depth = 0 if draft is None else config.depth
        self._rule: DepthRule | None = None
        if draft is not None and config.adaptive:
            target_s = measure_pace(rounds.target.runner, [config.verify_width], budget_s=MEASURING_S).steps[0][1]
            draft_s = measure_pace(draft.runner, [config.draft_width], budget_s=MEASURING_S).steps[0][1]
            self._rule = DepthRule([target_s + depth * draft_s for depth in range(self._max_depth + 1)])
        is_cuda = self._device.type == "cuda"
        self._landings = [
            torch.zeros(rounds.tree.outcome.shape, dtype=torch.int32, pin_memory=is_cuda) for _ in range(ROUNDS_AHEAD)
        ]
        self._num_launched = 0

    def can_play(self, params: SamplingParams) -> bool:
        return not params.shapes_scores

    def begin(self, request: Request) -> None:
        prompt_ids = list(request.prompt_ids)
        self._request = request
        self._rounds.begin(request.params, 0 if request.noise is None else request.noise.seed)
        self._catch_up(prompt_ids)
        self._token_ids, self._chain = prompt_ids, None
        if self._rounds.looks_up:
            self._chain = LookupChain(num_tokens=self._rounds.config.verify_width - 1)
            self._chain.begin(prompt_ids)
            self._chain.follow()
            self._rounds.learn(self._chain)

    def rounds(self, num_tokens: int) -> Rounds:
        yield from prefill(self._rounds.target.runner, self._request.prompt_ids, None)
        flights: deque[Flight] = deque()
        num_emitted, num_behind, landed = 0, 0, 0.0
        while num_emitted < num_tokens:
            while len(flights) < ROUNDS_AHEAD and num_emitted + len(flights) < num_tokens:
                depth = self._rule.depth() if self._rule is not None else self._max_depth
                if depth and num_behind > 1:
                    if flights:
                        break
                    num_behind = self._catch_up(self._token_ids)
                flight = self._launch(depth, len(flights))
                for other in flights:
                    other.is_usual &= flight.is_usual  # the host was late to see it land
                flights.append(flight)
            flight = flights.popleft()
            outcome = flight.wait()
            began, landed = max(landed, flight.launched), perf_counter()
            if not all(map(math.isfinite, outcome.bests)):
                raise NothingToChooseError(self._token_ids)
            num_behind = outcome.num_behind
            self._take(outcome)
            if self._rule is not None and flight.is_usual:
                self._rule.measure(flight.depth, len(outcome.token_ids) - 1, landed - began)
            num_emitted += len(outcome.token_ids)
            yield round_of(outcome, began, landed, self._request.near_tie)

    def end(self) -> None:
        """Nothing to do: what is under way ends by itself, and the next request plants its own text."""

    def _take(self, outcome: RoundOutcome) -> None:
        self._token_ids += outcome.token_ids
        self._rounds.take_over(self._token_ids, len(self._token_ids) - 1, outcome.num_behind)
        if self._chain is not None:
            self._chain.accept(outcome.token_ids)
            self._chain.follow()
            if self._num_launched % ROUNDS_PER_LESSON == 0:
                self._rounds.learn(self._chain)

    def _catch_up(self, token_ids: list[int]) -> int:
        """Prefill the draft, plant the text's end, and return what the draft lacks now. No round may be under way."""
        draft = self._rounds.draft
        if draft is not None:
            draft.runner.sync([draft.known(token) for token in token_ids[:-1]])
        self._rounds.plant(token_ids)
        return 0

    def _launch(self, depth: int, num_ahead: int) -> Flight:
        launched = perf_counter()
        is_usual = self._rounds.launch(depth, len(self._token_ids) + num_ahead * self._rounds.config.verify_width)
        landing = self._landings[self._num_launched % ROUNDS_AHEAD]
        self._num_launched += 1
        landing.copy_(self._rounds.tree.outcome, non_blocking=True)
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
        return Flight(depth, launched, landing, event, is_usual)


def round_of(outcome: RoundOutcome, began: float, landed: float, near_tie: float) -> Round:
    """What the loop tells of a round. Draft passes and verification are one launch, timed together as verification."""
    num_tokens = len(outcome.token_ids)
    return Round(
        token_ids=tuple(outcome.token_ids),
        stats=StepStats(
            num_drafted=outcome.num_verified - 1,
            num_verified=outcome.num_verified,
            num_accepted=num_tokens - 1,
            num_near_ties=sum(margin < near_tie for margin in outcome.margins),
            draft_s=0.0,
            verify_s=landed - began,
            was_hit=False,
            spans=(Span("target", began, landed, f"+{num_tokens}"),),
        ),
    )


def open_decoders(target: Runner, plan: RoundPlan) -> tuple[DeviceDecoder, ...]:
    """A decoder for these models; none where rounds need the host: another backend, or a tree that is too wide."""
    is_here = plan.draft is None or plan.draft.backend is target.backend
    if not is_here or not fits(plan.shape, plan.policy):
        return ()
    return (DeviceDecoder(DeviceRounds(target, plan.draft, plan.shape, plan.policy)),)
