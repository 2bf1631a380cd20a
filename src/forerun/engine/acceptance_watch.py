"""Detects a draft whose guesses the target rarely accepts, because it was probably made for another target.

It stays apart from the referee's records: it also sees rounds that a device plays, judges once an answer, and decides
nothing.
"""

import logging
from typing import Final

from forerun.core.config import EngineConfig
from forerun.core.drafter_config import draft_name
from forerun.core.steps import StepStats
from forerun.decoding.drafters import Drafters
from forerun.drafting.draft_model import DraftModelDrafter, UsualAcceptance

logger = logging.getLogger(__name__)

NUM_TOKENS: Final = 200  # of an answer, after which its rounds are judged
LEAST_ROUNDS: Final = 20  # with a proposal; a drafter with fewer rests because it does not pay


class AcceptanceWatch:
    """Judges the first tokens of every answer, and warns once.

    Args:
        drafters: the model or head of the first one is judged, if the user named it and it drafts in this process.
    """

    def __init__(self, config: EngineConfig, drafters: Drafters) -> None:
        self._name, first = next(iter(drafters.held.items()), ("", None))
        self._target = config.target
        self._draft = draft_name(config.drafter)
        self._usual: UsualAcceptance | None = None
        if self._draft is not None and isinstance(first, DraftModelDrafter):
            self._usual = first.usual_acceptance
        self.start_answer()

    def start_answer(self) -> None:
        """Start an answer."""
        self._num_tokens = self._num_drafted = self._num_taken = 0

    def told(self, stats: StepStats, num_tokens: int) -> None:
        """Count a round of the answer, which emitted `num_tokens` tokens."""
        if self._usual is None or self._num_tokens >= NUM_TOKENS:
            return
        self._num_tokens += num_tokens
        if stats.num_drafted and stats.drafted_by in ("", self._name):
            self._num_drafted += 1
            self._num_taken += stats.num_accepted > 0
        if self._num_tokens >= NUM_TOKENS and self._num_drafted >= LEAST_ROUNDS:
            self._judge(self._usual)

    def _judge(self, usual: UsualAcceptance) -> None:
        share = 100 * self._num_taken / self._num_drafted
        if share >= usual.floor:
            return
        self._usual = None  # warn only once
        logger.warning(
            "in the first %d tokens of an answer the target accepted a drafted token in %d of %d rounds (%.0f %%); "
            "with %s %d to %d %% is usual: %s was probably made for another target, or the text is unlike its training "
            "texts. Check the pair with: forerun check %s %s",
            NUM_TOKENS,
            self._num_taken,
            self._num_drafted,
            share,
            usual.kind,
            usual.low,
            usual.high,
            self._draft,
            self._target,
            self._draft,
        )
