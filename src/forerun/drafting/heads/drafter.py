"""Drafters that grow their tree with a draft head on the target's features."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from forerun.backends.device_rounds import RoundPlan
from forerun.core.drafter_config import DraftHead, DraftModel
from forerun.drafting.draft_model import DraftModelDrafter, UsualAcceptance
from forerun.drafting.draft_rows import DraftRows
from forerun.drafting.drafter import DraftOutcome, DraftReport, ReadsFeatures
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.policies import BEST_TREE, TreePolicy
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.model.vocabulary_map import VocabularyMap


class HeadVocabulary(VocabularyMap):
    """The map of a head's output, which has a part of the target's tokens; its input is every token of the target."""

    def read(self, token_ids: Sequence[int]) -> list[int]:
        num_ids = len(self.draft_ids)
        return [token_id if token_id < num_ids else 0 for token_id in token_ids]


def head_vocabulary(target_ids: Tensor, num_target: int) -> HeadVocabulary:
    """The map of a head whose outputs stand for these tokens, ascending, of a target with `num_target`."""
    draft_ids = torch.zeros(num_target, dtype=torch.int32)
    draft_ids[target_ids.long()] = torch.arange(len(target_ids), dtype=torch.int32)
    return HeadVocabulary(target_ids=target_ids.int(), draft_ids=draft_ids)


class HeadDrafter(DraftModelDrafter, ReadsFeatures):
    """A tree like a draft model's, grown by a head on the target's features.

    Args:
        runner: holds the head's cache; its executor is the head.
        taps: the target's layers whose outputs the head reads, in its own order.
    """

    usual_acceptance: ClassVar[UsualAcceptance | None] = None  # of the kind, if it is known

    def __init__(
        self,
        runner: Runner,
        config: DraftHead,
        policy: TreePolicy = BEST_TREE,
        *,
        target_vocab_size: int,
        taps: Sequence[int],
        vocabulary: VocabularyMap | None = None,
    ) -> None:
        self.taps = tuple(sorted(set(taps)))
        self._read_taps = tuple(taps)
        columns = [self.taps.index(layer) for layer in taps]
        self._features = TextFeatures(columns, runner.cache.dtype)
        super().__init__(
            runner,
            config.shape,
            self._suited(policy, config),
            target_vocab_size=target_vocab_size,
            vocabulary=vocabulary,
            rows=self._make_rows(runner, config),
        )

    @abstractmethod
    def _make_rows(self, runner: Runner, config: DraftHead) -> DraftRows:
        """The rows of this kind of head."""

    def _suited(self, policy: TreePolicy, config: DraftHead) -> TreePolicy:
        """The policy, changed where this kind of head requires it."""
        return replace(policy, looks_up=False)

    @property
    def round_plan(self) -> RoundPlan | None:
        return None

    def _plan_of(self, shape: DraftModel, *, kind: str, num_slots: int = 0) -> RoundPlan:
        return RoundPlan(
            draft=self._runner,
            shape=shape,
            policy=self._policy,
            vocabulary=self._vocabulary,
            taps=self._read_taps,
            kind=kind,
            num_slots=num_slots,
        )

    def read_features(self, place: int, features: Tensor) -> None:
        self._features.read(place, features)
        self._read_if_many()

    def told_features(self, place: int, features: Tensor) -> None:
        self._features.read_tree(place, features)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self._features.accept(outcome.path)
        report = super().told(outcome)
        if not outcome.is_own:
            self._read_if_many()
        return report

    def _read_if_many(self) -> None:
        """Read text even if this drafter is not to draft it, so that its features are not kept."""
        if len(self._features) > PREFILL_ROWS:
            self._draft.apply_told()
            while self.prefill():
                pass
