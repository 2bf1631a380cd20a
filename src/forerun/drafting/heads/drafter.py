"""Drafters that grow their tree with a draft head on the target's features."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from forerun.core.drafter_config import MOST_CHILDREN, DraftHead, DraftModel
from forerun.core.pace import Pace
from forerun.drafting.draft_model import DraftModelDrafter, serial_rows
from forerun.drafting.draft_rows import DraftRows
from forerun.drafting.drafter import DraftReport, Measure, RoundPlan
from forerun.drafting.heads.dflash_network import DFlashExecutor
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.features import TextFeatures
from forerun.drafting.heads.rows import DFlashRows, EagleRows
from forerun.drafting.tree_policy import BEST_TREE, TreePolicy
from forerun.model.measure import widths_up_to
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.speculation.economy.costs import RoundCosts
from forerun.speculation.economy.widths import WidthRule
from forerun.speculation.walk import Acceptance

EXPANSION: Final = Pace(steps=((1, 100e-6), (8, 200e-6)))  # seconds, of ranking rows of 50,000 logits; then measured
BATCH: Final = 8  # nodes that a step on a GPU expands; it has room for 16 children of each


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


class HeadDrafter(DraftModelDrafter):
    """A tree like a draft model's, grown by a head on the target's features.

    Args:
        runner: holds the head's cache; its executor is the head.
        taps: the target's layers whose outputs the head reads, in its own order.
    """

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
        self._features = TextFeatures(columns, runner.cache.keys_LSKD.dtype)
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

    def _plan_of(self, shape: DraftModel) -> RoundPlan:
        return RoundPlan(
            draft=self._runner, shape=shape, policy=self._policy, vocabulary=self._vocabulary, taps=self._read_taps
        )

    def read_features(self, place: int, features: Tensor) -> None:
        self._features.read(place, features)
        self._read_if_many()

    def observe_features(self, place: int, features: Tensor) -> None:
        self._features.observe(place, features)

    def accept(self, acceptance: Acceptance) -> DraftReport:
        self._features.accept(acceptance.path)
        return super().accept(acceptance)

    def note(self, acceptance: Acceptance) -> None:
        self._features.accept(acceptance.path)
        super().note(acceptance)
        self._read_if_many()

    def _read_if_many(self) -> None:
        """Read text even if this drafter is not to draft it, so that its features are not kept."""
        if len(self._features) > PREFILL_ROWS:
            self._draft.tell()
            while self.prefill():
                pass


class EagleDrafter(HeadDrafter):
    """Grows its tree with an EAGLE-3 head, one pass for each batch of nodes.

    Looked-up text is not hung into the tree: a chain is expanded in one pass, but each of its rows would have to start
    from the state of the row before it.
    """

    def _make_rows(self, runner: Runner, config: DraftHead) -> EagleRows:
        executor = runner.executor
        assert isinstance(executor, HeadExecutor), f"the executor of a head, not {type(executor)}"
        return EagleRows(runner, executor, self._features, serial_rows(config.shape))

    @property
    def round_plan(self) -> RoundPlan | None:
        return self._plan_of(self._config)


class DFlashDrafter(HeadDrafter):
    """Grows its tree in the distributions of a DFlash head, which one pass gives for all places of a block.

    As the growth is best-first and expands without cost, the tree holds the nodes of the largest joint probabilities,
    at temperature > 0 with the target's noise. Source: DDTree, arXiv 2604.12989, which does not know the noise.
    """

    def _make_rows(self, runner: Runner, config: DraftHead) -> DFlashRows:
        executor = runner.executor
        assert isinstance(executor, DFlashExecutor), f"the executor of a DFlash head, not {type(executor)}"
        self._block = DFlashRows(runner, executor, self._features, 0)
        return self._block

    def _suited(self, policy: TreePolicy, config: DraftHead) -> TreePolicy:
        num_children = max(1, min(config.verify_width - 1, MOST_CHILDREN))
        return replace(policy, min_mass=0.0, num_children=num_children)

    @property
    def round_plan(self) -> RoundPlan | None:
        depth = num_steps(self._block.num_drafted, self.verify_width)
        return self._plan_of(replace(self._config, draft_width=BATCH, depth=depth))

    def adapt(self, measure: Measure, costs: RoundCosts | None = None) -> None:
        if self._config.adaptive:
            self._guessed.rule = WidthRule(costs or measure(widths_up_to(self.verify_width)), EXPANSION)

    def _grow(self) -> None:
        if self.verify_width == 1:  # no guess would be verified, so only text is read
            super()._grow()
            return
        began = perf_counter()
        rule = self._guessed.rule
        self._block.draft(self._draft.token_ids)
        if rule is not None:
            rule.spend(perf_counter() - began)
        while self._draft.expand():
            pass


def num_steps(num_drafted: int, verify_width: int) -> int:
    """How many batches lead to the same tree as expanding until nothing could change it.

    The last node found has at most `longest` nodes above it, each expanded in a step of its own. The next of them is
    left out of a batch only if all of the batch is likelier, so that these are nodes of the tree, too.
    """
    longest = min(num_drafted, verify_width - 1)
    return max(1, longest + (verify_width - 1 - longest) // BATCH)
