"""Rounds that run entirely on a GPU: a few graph launches and one small copy to the host.

Draft passes, updates of the tree, verification, sampling and the walk are a sequence of kernels on permanent buffers;
see `tree/device_tree`. The host reads a round while the device runs the next one, so the host's work costs nothing as
long as it takes less time than a round.

A round consists of parts. The part with a draft pass is repeated for each level of the tree, so the recordings do not
depend on the depth. All parts for texts of every length are recorded when the first request begins.

Legend: R rows of a pass, C children, P positions of the text.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Final

import torch

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.buffers import NARROW_ROWS
from forerun.backends.gpu.cuda_graphs import GraphPool
from forerun.backends.gpu.dflash_on_device import DFlashOnDevice
from forerun.backends.gpu.eagle_on_device import EagleOnDevice
from forerun.backends.gpu.executor import DeviceExecutor, all_num_splits, num_splits_for
from forerun.backends.gpu.head_on_device import HeadOnDevice
from forerun.backends.gpu.model_on_device import ModelOnDevice, SideOnDevice, vocabulary_of
from forerun.backends.gpu.sampling.gumbel_noise import Draw
from forerun.backends.gpu.sampling.join_tiles import MOST_CHILDREN
from forerun.backends.gpu.sampling.output_projection import sample_tokens, topk_tokens
from forerun.backends.gpu.sampling.score_shaping import RequestSettings, RowPaths
from forerun.backends.gpu.sampling.stored_scores import StoredScores, sample_stored, topk_stored
from forerun.backends.gpu.sampling.truncation import Filters
from forerun.backends.gpu.tree.count_tokens import count_tokens
from forerun.backends.gpu.tree.device_tree import MOST_BATCH_CHILDREN, DeviceTree
from forerun.backends.gpu.tree.grow import grow
from forerun.backends.gpu.tree.move_slots import move_slots
from forerun.backends.gpu.tree.prompt_lookup import add_lookup_chain, chain_costs
from forerun.backends.gpu.tree.verify_rows import fill_verify_rows
from forerun.backends.gpu.tree.walk import walk
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import MAX_MATCH, MIN_MATCH
from forerun.model.runner import Runner
from forerun.sampling.noise import signed_mix

HEADS: Final[Mapping[str, type[HeadOnDevice]]] = {side.kind: side for side in (EagleOnDevice, DFlashOnDevice)}
UNKNOWN_RATE: Final = 0.5  # of looked-up tokens, until the host says how often they were accepted


class RoundPart(Enum):
    """A part of a round that is recorded as one graph. A round is VERIFY_ROOT alone, or FIRST_PASS, any number of
    NEXT_PASS, and VERIFY_TREE."""

    FIRST_PASS = "the looked-up chain and the first draft pass"
    NEXT_PASS = "another draft pass"
    VERIFY_TREE = "verification of what was drafted"
    VERIFY_ROOT = "verification of the root, and of a looked-up chain"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShape:
    """The parameters on which a part's launches depend; everything else is data on the device.

    Args:
        is_shaped: scores are changed by more than the temperature.
    """

    part: RoundPart
    num_splits: int
    is_greedy: bool
    is_shaped: bool


class DeviceRounds:
    """The rounds of one engine, for one request at a time.

    A round appends the accepted tokens' keys and values to the caches; `take_over` updates the host's runners. Between
    requests only the host uses the runners.
    """

    def __init__(self, target: Runner, plan: RoundPlan) -> None:
        draft = plan.draft
        self.config = plan.shape
        self._policy = plan.policy
        device = target.device
        taps = tuple(sorted(set(plan.taps)))
        self.target = ModelOnDevice(target, num_rows=self.config.verify_width, taps=taps)
        self._overlaps = self.target.executor.overlaps
        side = HEADS.get(plan.kind)
        self.tree = DeviceTree(
            verify_width=self.config.verify_width, draft_width=self.config.draft_width,
            num_children=self._policy.num_children,
            min_mass=0.0 if self.config.adaptive else self._policy.min_mass, device=device,
            rereads=side is not None and side.rereads, follows=side is not None and side.follows,
        )  # fmt: skip
        self._most_draft_rows = self.config.draft_width + self.tree.shape.most_behind
        self.draft = None if draft is None else self._draft_side(draft, plan, target)
        self.graphs = GraphPool(device)
        self._text_P = torch.zeros(target.cache.capacity, dtype=torch.int32, device=device)
        self._temperature = torch.ones(1, device=device)
        self._seed_mix = torch.zeros(1, dtype=torch.int64, device=device)
        self._settings = RequestSettings.for_vocabulary(target.spec.vocab_size, device)
        self._filters = Filters.on(device)
        self._recorded: set[PartShape] = set()  # One shape of every kind that is recorded.
        self.looks_up = self.draft is not None and self._policy.looks_up and self.config.verify_width > 1
        num_chained = max(1, self.config.verify_width - 1)
        costs = chain_costs([[math.log(UNKNOWN_RATE)] * num_chained] * (MAX_MATCH - MIN_MATCH + 1))
        is_cuda = torch.device(device).type == "cuda"
        self._costs_to_copy = [torch.zeros(costs.shape, pin_memory=is_cuda) for _ in range(2)]
        self._chain_costs = costs.to(device)

    @property
    def most_behind(self) -> int:
        """Tokens before the root that the draft's cache may lack."""
        return self.tree.shape.most_behind

    def set_request(
        self, params: SamplingParams, seed: int, prompt_ids: Sequence[int] = (), written_ids: Sequence[int] = ()
    ) -> None:
        """Set the parameters of a request; written_ids are the tokens generated after the prompt so far."""
        self._kind = kind_of(params)
        self._record_all()
        # For shaped scores the temperature is one of the settings.
        self._temperature.fill_(1.0 if params.is_greedy or params.shapes_scores else params.temperature)
        self._seed_mix.fill_(signed_mix(seed))
        if params.shapes_scores:
            self._settings.set_request(params, prompt_ids, written_ids)
            self._filters.set_request(params, len(self._settings.biases))

    def set_text(self, token_ids: Sequence[int]) -> None:
        """Begin at the end of this text; all of its tokens but the last are in the caches."""
        num_before = len(token_ids) - 1
        self._text_P[: len(token_ids)] = torch.tensor(token_ids, dtype=torch.int32)
        self.tree.reset(root=token_ids[-1], committed=num_before, draft_committed=num_before)

    def update_costs(self, log_probs: Sequence[Sequence[float]]) -> None:
        """Update the costs of looked-up tokens, without waiting for the rounds in flight."""
        self._costs_to_copy.reverse()  # The previous copy may not have finished.
        self._costs_to_copy[0].copy_(chain_costs(log_probs))
        self._chain_costs.copy_(self._costs_to_copy[0], non_blocking=True)

    def launch(self, depth: int, longest: int) -> bool:
        """Run a round with this many draft passes on at most `longest` tokens; True if it was recorded before."""
        num_splits = num_splits_for(longest)
        parts = [replace(self._kind, part=part, num_splits=num_splits) for part in parts_of(depth)]
        were_recorded = [self.graphs.run(part, partial(self._play, part)) for part in parts]
        return all(were_recorded)

    def _record_all(self) -> None:
        """Record the parts of rounds of this kind for texts of every length, at their first request.

        This overwrites the first slots of both caches.
        """
        if not self.graphs.records or self._kind in self._recorded:
            return
        depths = (0,) if self.draft is None else (2, 0)
        for side in (self.target, self.draft):
            if side is not None:
                side.runner.forget()
        all_splits = all_num_splits(self.target.runner.cache.capacity)
        for part in (part for depth in depths for part in parts_of(depth)):
            self.set_text([0])
            for num_splits in all_splits:
                shape = replace(self._kind, part=part, num_splits=num_splits)
                is_first = num_splits == all_splits[0]
                compiling = partial(self._play if is_first else self._attend, shape)
                self.graphs.prepare(shape, partial(self._play, shape), compiling=compiling)
        self._recorded.add(self._kind)

    def take_over(self, token_ids: Sequence[int], num_committed: int, num_behind: int) -> None:
        """Note in the runners that their caches hold the text up to `num_committed`, the draft's less `num_behind`."""
        for side, length in ((self.target, num_committed), (self.draft, num_committed - num_behind)):
            if side is not None:
                runner = side.runner
                runner.adopt(side.read(token_ids[len(runner.cached_ids) : length]))

    def _play(self, shape: PartShape) -> None:
        """Launch the kernels of a part."""
        if shape.part in (RoundPart.FIRST_PASS, RoundPart.VERIFY_ROOT) and self.looks_up:
            add_lookup_chain(self.tree, self._text_P, self._chain_costs, overlaps=self._overlaps)
        if shape.part in (RoundPart.FIRST_PASS, RoundPart.NEXT_PASS):
            self._grow(shape)
        else:
            self._verify(shape)

    def _attend(self, shape: PartShape) -> None:
        """Launch the kernels of a part that depend on the number of splits."""
        if shape.part in (RoundPart.FIRST_PASS, RoundPart.NEXT_PASS):
            assert self.draft is not None, "a tree without a draft has no depth"
            self.draft.launch_attention(self._num_draft_rows(shape), shape.num_splits)
        else:
            self.target.launch_attention(self.config.verify_width, shape.num_splits)

    def _draft_side(self, draft: Runner, plan: RoundPlan, target: Runner) -> SideOnDevice:
        if plan.kind:
            return HEADS[plan.kind](draft, plan, self.tree, target)
        return ModelOnDevice(
            draft, num_rows=self._most_draft_rows, num_children=self._policy.num_children,
            vocabulary=vocabulary_of(plan, draft, num_target=target.spec.vocab_size),
        )  # fmt: skip

    def _num_draft_rows(self, shape: PartShape) -> int:
        """The first pass has rows for the tokens before the root, too."""
        return self._most_draft_rows if shape.part is RoundPart.FIRST_PASS else self.config.draft_width

    def _grow(self, shape: PartShape) -> None:
        """Add the children from the previous pass, and expand the next batch of nodes."""
        draft = self.draft
        tree = self.tree
        is_first = shape.part is RoundPart.FIRST_PASS
        assert draft is not None, "a tree without a draft has no depth"
        draw = self._draw(draft, is_greedy=shape.is_greedy or not self._policy.knows_noise)
        num_rows = self._num_draft_rows(shape)
        num_before = num_rows - self.config.draft_width
        grow(
            tree, draft.rows, self._text_P, None if is_first else draft.topk, draft_ids=draft.draft_ids,
            spare_slot=draft.spare_slot, overlaps=self._overlaps,
        )  # fmt: skip
        draft.pass_layers(num_rows, shape.num_splits)
        num_children = self._policy.num_children
        if isinstance(draft, ModelOnDevice) and not shape.is_shaped:
            topk_tokens(
                draft.head, draw, draft.topk, num_children=num_children, vocab_size=draft.num_columns,
                num_rows=num_rows, first_row=num_before,
            )  # fmt: skip
        else:
            draft.write_scores(num_rows, num_before)
            topk_stored(
                self._stored(draft, shape), draw, draft.topk, num_children=num_children, num_rows=num_rows,
                first_row=num_before,
            )  # fmt: skip

    def _verify(self, shape: PartShape) -> None:
        """Verify the tree, walk it, and move the accepted tokens' keys and values to their slots in the caches."""
        tree = self.tree
        target = self.target
        overlaps = self._overlaps
        verify_width = self.config.verify_width
        drafted = self.draft if shape.part is RoundPart.VERIFY_TREE else None
        head = self.draft if isinstance(self.draft, HeadOnDevice) else None
        children = None if drafted is None else drafted.topk
        fill_verify_rows(tree, target.rows, children, spare_slot=target.spare_slot, overlaps=overlaps)
        target.pass_layers(verify_width, shape.num_splits)
        if head is not None:
            slots_R, places_R = (rows[:verify_width].long() for rows in (target.rows.slots, target.rows.positions))
            head.keep_features(target.features_RFG[:verify_width], slots_R, places_R)
        draw = self._draw(target, is_greedy=shape.is_greedy)
        if shape.is_shaped:
            target.write_scores(verify_width, 0)
            sample_stored(self._stored(target, shape), draw, target.sampled, num_rows=verify_width)
        else:
            sample_tokens(target.head, draw, target.sampled, num_rows=verify_width)
        walk(tree, target.sampled, self._text_P, overlaps=overlaps)
        if shape.is_shaped:
            count_tokens(tree, self._settings, overlaps=overlaps)
        if verify_width > 1:  # A root alone is already in its final slot.
            move_slots(target.runner.cache.storage_2LSKD, tree.target_moves, overlaps=overlaps)
            if head is not None:
                move_slots(head.kept, tree.target_moves, overlaps=overlaps)
        if drafted is not None and head is None:
            move_slots(drafted.runner.cache.storage_2LSKD, tree.draft_moves, overlaps=overlaps)

    def _draw(self, side: SideOnDevice, *, is_greedy: bool) -> Draw:
        seed_mix = None if is_greedy else self._seed_mix
        return Draw(self._temperature, seed_mix, side.rows.positions, side.column_ids)

    def _stored(self, side: SideOnDevice, shape: PartShape) -> StoredScores:
        """A side's scores in memory; row i is node i of the tree, or of the draft's batch."""
        nodes = self.tree.nodes
        row_nodes = None if side is self.target else self.tree.batch_W
        return StoredScores(
            rows=side.score_rows, settings=self._settings if shape.is_shaped else None,
            filters=self._filters if shape.is_shaped and not shape.is_greedy else None,
            paths=RowPaths(nodes.tokens, nodes.ancestors, row_nodes), maxima=side.maxima, overlaps=self._overlaps,
        )  # fmt: skip


def kind_of(params: SamplingParams) -> PartShape:
    """The shape of one part of a request's rounds, with the parameters that all parts have in common."""
    return PartShape(
        part=RoundPart.VERIFY_ROOT, num_splits=0, is_greedy=params.is_greedy, is_shaped=params.shapes_scores
    )


def parts_of(depth: int) -> list[RoundPart]:
    """The parts of a round with this many draft passes."""
    return (
        [RoundPart.FIRST_PASS, *[RoundPart.NEXT_PASS] * (depth - 1), RoundPart.VERIFY_TREE]
        if depth
        else [RoundPart.VERIFY_ROOT]
    )


def can_play(target: Runner, plan: RoundPlan) -> bool:
    """False if rounds need the host: with another backend, a head without a fast path, a tree that is too wide, or a
    target that several ranks share."""
    draft = plan.draft
    has_path = draft is None or (plan.kind in HEADS if plan.taps else draft.backend is target.backend)
    return isinstance(target.executor, DeviceExecutor) and has_path and fits(plan)


def fits(plan: RoundPlan) -> bool:
    """True if a round on the device has room for the tree."""
    shape = plan.shape
    num_children = plan.policy.num_children
    is_narrow = shape.verify_width <= NARROW_ROWS and shape.draft_width < NARROW_ROWS
    return is_narrow and num_children <= MOST_CHILDREN and shape.draft_width * num_children <= MOST_BATCH_CHILDREN
