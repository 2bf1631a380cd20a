"""Decoding in rounds that run entirely on the device; the host launches them ahead and reads their results."""

import math
from typing import Final

from forerun.backends.backend import Backend
from forerun.backends.device_rounds import PlayedRound, RoundPipeline, RoundPlan
from forerun.core.steps import Span, StepStats
from forerun.decoding.decoder import Decoder, NothingToChooseError, Request, Round, Rounds
from forerun.decoding.prefill import prefill
from forerun.drafting.prompt_lookup import LookupChain
from forerun.model.pass_times import measure_pace
from forerun.model.runner import Runner
from forerun.speculation.referee.referee import Referee

ROUNDS_PER_UPDATE: Final = 8  # Rounds between two updates of the acceptance rates of looked-up tokens.
MEASURING_S: Final = 0.1  # Spent on timing each of the two passes whose times decide the depth.


class DeviceDecoder(Decoder):
    """Decodes on the device, without the host between steps as in `decoding.host_loop`.

    The text is the same, since a token depends only on the text before it and on the seed. It cannot serve requests
    for log-probabilities, since no scores are copied to the host, requests with a prediction, since the device cannot
    look it up, or requests with a grammar, since its masks are computed on the host.
    """

    def __init__(self, pipeline: RoundPipeline) -> None:
        rounds = pipeline.rounds
        self._rounds = rounds
        self._pipeline = pipeline
        config = rounds.config
        draft = rounds.draft
        self._max_depth = 0 if draft is None else config.depth
        self._referee: Referee | None = None  # None: rounds have all levels
        if draft is not None and config.adaptive:
            target_s = measure_pace(rounds.target.runner, [config.verify_width], budget_s=MEASURING_S).steps[0][1]
            draft_s = measure_pace(draft.runner, [config.draft_width], budget_s=MEASURING_S).steps[0][1]
            step_s = draft_s if draft.step_s is None else draft.step_s
            depths_s = [target_s + draft_s + step_s * step for step in range(self._max_depth)]
            self._referee = Referee.of_recorded_rounds([target_s, *depths_s])

    def can_play(self, request: Request) -> bool:
        return request.params.logprobs is None and request.params.grammar is None and not request.prediction

    def start(self, request: Request) -> None:
        self._request = request
        self._token_ids = list(request.prompt_ids)
        self._chain = None
        seed = 0 if request.noise is None else request.noise.seed
        self._rounds.set_request(request.params, seed, request.own_prompt_ids, request.written_ids)
        self._pipeline.clear()
        draft = self._rounds.draft
        if draft is not None:
            draft.start_request(self._token_ids[:-1], request.owner)
        if self._rounds.looks_up:
            self._chain = LookupChain(num_tokens=self._rounds.config.verify_width - 1)
            self._chain.read_prompt(self._token_ids)
            self._chain.follow()
            self._rounds.update_costs(self._chain.log_probs())

    def rounds(self, num_tokens: int) -> Rounds:
        yield from prefill(self._rounds.target.runner, self._request, self._rounds.draft)
        self._catch_up()
        num_wanted = num_tokens
        while num_wanted > 0:
            self._fill(num_wanted)
            played = self._pipeline.take()
            if not all(map(math.isfinite, played.outcome.bests)):
                raise NothingToChooseError(self._token_ids)
            self._accept(played)
            num_wanted -= len(played.outcome.token_ids)
            yield round_of(played, self._request.near_tie)

    def end(self) -> None:
        """Do nothing: rounds in flight run to their end, and the next request sets a new text."""

    def _fill(self, num_wanted: int) -> None:
        """Launch rounds until the pipeline is full or has one for every wanted token; each gives at least one.

        The first draft pass of a round has rows for a few tokens that the draft's cache lacks. If it lacks more, the
        host prefills them first, while no round is in flight.
        """
        while self._pipeline.has_room and len(self._pipeline) < num_wanted:
            depth = self._max_depth if self._referee is None else self._referee.depth()
            if depth and self._num_behind > self._rounds.most_behind:
                if len(self._pipeline):
                    return
                self._catch_up()
            self._pipeline.launch(depth, len(self._token_ids))

    def _accept(self, played: PlayedRound) -> None:
        """Update the text, the host's record of the caches and the statistics of rounds with a round's outcome."""
        token_ids = played.outcome.token_ids
        self._num_behind = played.outcome.num_behind
        self._token_ids += token_ids
        self._rounds.take_over(self._token_ids, len(self._token_ids) - 1, self._num_behind)
        if self._chain is not None:
            self._chain.accept(token_ids)
            self._chain.follow()
            if self._pipeline.num_launched % ROUNDS_PER_UPDATE == 0:
                self._rounds.update_costs(self._chain.log_probs())
        if self._referee is not None and played.is_usual:
            self._referee.measure_depth(played.depth, len(token_ids) - 1, played.arrived_at - played.began_at)

    def _catch_up(self) -> None:
        """Prefill the draft and start rounds at the end of the text. No round may be in flight."""
        draft = self._rounds.draft
        if draft is not None:
            draft.catch_up(self._token_ids[:-1])
        self._rounds.set_text(self._token_ids)
        self._num_behind = 0  # Tokens before the root that the draft's cache lacks.


def round_of(played: PlayedRound, near_tie: float) -> Round:
    """The result of a round for the stream. Draft passes and verification are timed together as verification."""
    outcome = played.outcome
    num_tokens = len(played.outcome.token_ids)
    return Round(
        token_ids=tuple(outcome.token_ids),
        stats=StepStats(
            num_drafted=outcome.num_verified - 1,
            num_verified=outcome.num_verified,
            num_accepted=num_tokens - 1,
            num_near_ties=sum(margin < near_tie for margin in outcome.margins),
            draft_s=0.0,
            verify_s=played.arrived_at - played.began_at,
            was_hit=False,
            spans=(Span("target", played.began_at, played.arrived_at, f"+{num_tokens}"),),
        ),
    )


def device_decoders(backend: Backend, target: Runner, plan: RoundPlan | None) -> tuple[DeviceDecoder, ...]:
    """A decoder for rounds that the backend plays; none if rounds need the host."""
    if plan is None or not backend.plays_rounds(target, plan):
        return ()
    return (DeviceDecoder(backend.rounds(target, plan)),)
