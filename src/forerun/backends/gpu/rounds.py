"""Rounds that run wholly on a GPU: a few graph launches, one small copy back.

Draft passes, the tree's bookkeeping, verification, sampling and the walk are kernels in a row, on buffers that stay;
see `tree/device_tree`. While the device plays a round the host reads the one before, so the host's part costs nothing
as long as it is shorter than a round.

A round is played part by part, and the part with a draft pass as often as the tree is deep: so the depth is no matter
of what is recorded. All parts for texts of every length are recorded when the first request begins.

Legend: R rows of a pass, C children, P places of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import torch
from torch import Tensor

from forerun.backends.gpu.cuda_graphs import GraphPool
from forerun.backends.gpu.executor import DeviceExecutor, all_num_splits, num_splits_for
from forerun.backends.gpu.launches import NARROW_ROWS, PassShape
from forerun.backends.gpu.sampling.gumbel_noise import Draw
from forerun.backends.gpu.sampling.join_tiles import MOST_CHILDREN, Sampled, TopK
from forerun.backends.gpu.sampling.lm_head import LmHead, sample_tokens, topk_tokens
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.backends.gpu.tree.device_tree import MOST_BATCH_CHILDREN, DeviceTree
from forerun.backends.gpu.tree.grow import grow
from forerun.backends.gpu.tree.move_slots import move_slots
from forerun.backends.gpu.tree.prompt_lookup import add_lookup_chain, chain_costs
from forerun.backends.gpu.tree.verify_rows import fill_verify_rows
from forerun.backends.gpu.tree.walk import walk
from forerun.core.config import SamplingParams
from forerun.core.sublayers import NOTHING
from forerun.drafting.drafter import RoundPlan
from forerun.drafting.lookup_chain import LookupChain
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import signed_mix


class RoundPart(Enum):
    """What is recorded as one graph. A round is VERIFY_ROOT alone, or FIRST_PASS, any NEXT_PASS, VERIFY_TREE."""

    FIRST_PASS = "the looked-up chain and the first draft pass"
    NEXT_PASS = "another draft pass"
    VERIFY_TREE = "verification of what was drafted"
    VERIFY_ROOT = "verification of the root, and of a looked-up chain"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartShape:
    """What a part's launches depend on; everything else is data on the device."""

    part: RoundPart
    num_splits: int
    is_greedy: bool


class ModelOnDevice:
    """One model with the memory that sampling goes through: the target's, or with `num_children` the draft's."""

    def __init__(
        self, runner: Runner, *, num_rows: int, num_children: int | None, vocabulary: VocabularyMap | None = None
    ) -> None:
        assert isinstance(runner.executor, DeviceExecutor), "rounds on the device need the device executor"
        self.runner, self.executor = runner, runner.executor
        device, spec = runner.device, runner.spec
        self.spare_slot = runner.cache.capacity - 1
        self.vocabulary = vocabulary
        self.draft_ids, self.column_ids = (None, None) if vocabulary is None else id_tables(vocabulary, device)
        maxima = TileMaxima.for_vocabulary(
            spec.vocab_size, block=self.executor.head.tiles.block_out, max_rows=num_rows,
            is_topk=num_children is not None, device=device,
        )  # fmt: skip
        self.head = LmHead(
            h=self.executor.buffers.h, packed=self.executor.head, norm=self.executor.head_norm,
            workspace=self.executor.buffers.workspace, maxima=maxima, overlaps=self.executor.overlaps,
        )  # fmt: skip
        self.sampled = Sampled(
            torch.zeros(num_rows, dtype=torch.int32, device=device), *torch.zeros(2, num_rows, device=device)
        )
        topk_shape = (num_rows, num_children or 0)
        self.topk = TopK(
            torch.zeros(topk_shape, dtype=torch.int32, device=device), torch.zeros(topk_shape, device=device)
        )

    def read(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The target's tokens as this model reads them."""
        return token_ids if self.vocabulary is None else self.vocabulary.read(token_ids)

    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        """All of a pass over the rows of the executor's table but the head."""
        self.executor.launch_layers(
            PassShape(num_rows=num_rows, num_splits=num_splits, num_logit_rows=num_rows, skipped=NOTHING)
        )


class DeviceRounds:
    """The rounds of one engine, for one request after the other.

    A round leaves the text's keys and values in place behind those of the rounds before; `take_over` lets the host's
    runners know. Between requests the runners are the host's alone.
    """

    def __init__(self, target: Runner, plan: RoundPlan) -> None:
        draft, self.config, self._policy = plan.draft, plan.shape, plan.policy
        self.target = ModelOnDevice(target, num_rows=self.config.verify_width, num_children=None)
        self.draft = None if draft is None else ModelOnDevice(
            draft, num_rows=self.config.draft_width + 1, num_children=self._policy.num_children,
            vocabulary=vocabulary_of(plan, draft, num_target=target.spec.vocab_size),
        )  # fmt: skip
        device, self._overlaps = target.device, self.target.executor.overlaps
        self.tree = DeviceTree(
            verify_width=self.config.verify_width, draft_width=self.config.draft_width,
            num_children=self._policy.num_children,
            min_mass=0.0 if self.config.adaptive else self._policy.min_mass, device=device,
        )  # fmt: skip
        self.graphs = GraphPool(device)
        self._text_P = torch.zeros(target.cache.capacity, dtype=torch.int32, device=device)
        self._temperature = torch.ones(1, device=device)
        self._seed_mix = torch.zeros(1, dtype=torch.int64, device=device)
        self._recorded: set[bool] = set()  # Whether greedy and sampled rounds are.
        self.looks_up = self.draft is not None and self._policy.looks_up and self.config.verify_width > 1
        costs = chain_costs(LookupChain(num_tokens=max(1, self.config.verify_width - 1)).log_probs())
        is_cuda = torch.device(device).type == "cuda"
        self._costs_to_copy = [torch.zeros(costs.shape, pin_memory=is_cuda) for _ in range(2)]
        self._chain_costs = costs.to(device)

    def begin(self, params: SamplingParams, seed: int) -> None:
        """What all rounds of a request have in common."""
        self._is_greedy = params.is_greedy
        self._record_all()
        self._temperature.fill_(1.0 if params.is_greedy else params.temperature)
        self._seed_mix.fill_(signed_mix(seed))

    def set_text(self, token_ids: Sequence[int]) -> None:
        """Begin at the end of this text, all of which but the last token is in the caches."""
        num_before = len(token_ids) - 1
        self._text_P[: len(token_ids)] = torch.tensor(token_ids, dtype=torch.int32)
        self.tree.begin(
            root=token_ids[-1], committed=num_before, draft_committed=num_before,
            before_root=token_ids[-2] if num_before else 0,
        )  # fmt: skip

    def update_costs(self, chain: LookupChain) -> None:
        """Take what looked-up tokens are worth by now, without waiting for the rounds in flight."""
        self._costs_to_copy.reverse()  # The copy of last time may not have ended.
        self._costs_to_copy[0].copy_(chain_costs(chain.log_probs()))
        self._chain_costs.copy_(self._costs_to_copy[0], non_blocking=True)

    def launch(self, depth: int, longest: int) -> bool:
        """Play a round with this many draft passes on at most `longest` tokens; True if it was recorded before."""
        num_splits = num_splits_for(longest)
        parts = [PartShape(part=part, num_splits=num_splits, is_greedy=self._is_greedy) for part in parts_of(depth)]
        were_recorded = [self.graphs.run(part, partial(self._play, part)) for part in parts]
        return all(were_recorded)

    def _record_all(self) -> None:
        """Record the parts of rounds of this kind for texts of every length, at their first request.

        That fills the first slots of both caches anew.
        """
        depths = (0,) if self.draft is None else (2, 0)
        parts = [part for depth in depths for part in parts_of(depth)]
        shapes = [
            PartShape(part=part, num_splits=num_splits, is_greedy=self._is_greedy)
            for num_splits in all_num_splits(self.target.runner.cache.capacity)
            for part in parts
        ]
        if not self.graphs.records or self._is_greedy in self._recorded:
            return
        for side in (self.target, self.draft):
            if side is not None:
                side.runner.forget()
        for shape in shapes:
            self.set_text([0])
            self.graphs.prepare(shape, partial(self._play, shape))
        self._recorded.add(self._is_greedy)

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

    def _grow(self, shape: PartShape) -> None:
        """Take in the children of the pass before, and expand the next batch of nodes."""
        draft, tree, is_first = self.draft, self.tree, shape.part is RoundPart.FIRST_PASS
        assert draft is not None and draft.vocabulary is not None, "a tree without a draft has no depth"
        draw = self._draw(draft, is_greedy=shape.is_greedy or not self._policy.knows_noise)
        num_before = 1 if is_first else 0  # The first pass has a row for the token before the root.
        num_rows = self.config.draft_width + num_before
        grow(
            tree, draft.executor.rows, None if is_first else draft.topk, draft_ids=draft.draft_ids,
            spare_slot=draft.spare_slot, overlaps=self._overlaps,
        )  # fmt: skip
        draft.pass_layers(num_rows, shape.num_splits)
        topk_tokens(
            draft.head, draw, draft.topk, num_children=self._policy.num_children,
            vocab_size=draft.vocabulary.num_columns, num_rows=num_rows, first_row=num_before,
        )  # fmt: skip

    def _verify(self, shape: PartShape) -> None:
        """Verify the tree, walk it, and move what was accepted to its place in the caches."""
        tree, target, overlaps, verify_width = self.tree, self.target, self._overlaps, self.config.verify_width
        drafted = self.draft if shape.part is RoundPart.VERIFY_TREE else None
        children = None if drafted is None else drafted.topk
        fill_verify_rows(tree, target.executor.rows, children, spare_slot=target.spare_slot, overlaps=overlaps)
        target.pass_layers(verify_width, shape.num_splits)
        draw = self._draw(target, is_greedy=shape.is_greedy)
        sample_tokens(target.head, draw, target.sampled, num_rows=verify_width)
        walk(tree, target.sampled, self._text_P, overlaps=overlaps)
        if verify_width > 1:  # A root alone lies in its final slot already.
            move_slots(target.runner.cache.storage_2LSKD, tree.target_moves, overlaps=overlaps)
        if drafted is not None:
            move_slots(drafted.runner.cache.storage_2LSKD, tree.draft_moves, overlaps=overlaps)

    def _draw(self, side: ModelOnDevice, *, is_greedy: bool) -> Draw:
        seed_mix = None if is_greedy else self._seed_mix
        return Draw(self._temperature, seed_mix, side.executor.rows.positions, side.column_ids)


def parts_of(depth: int) -> list[RoundPart]:
    """The parts of a round with so many draft passes."""
    return (
        [RoundPart.FIRST_PASS, *[RoundPart.NEXT_PASS] * (depth - 1), RoundPart.VERIFY_TREE]
        if depth
        else [RoundPart.VERIFY_ROOT]
    )


def vocabulary_of(plan: RoundPlan, draft: Runner, *, num_target: int) -> VocabularyMap:
    """What the draft's ids stand for."""
    num_draft = draft.spec.vocab_size
    vocabulary = plan.vocabulary or VocabularyMap.of_equal_ids(num_target=num_target, num_draft=num_draft)
    num_ids = len(vocabulary.draft_ids)
    assert num_ids == num_target, f"a kernel would read past {num_ids} ids where the target has {num_target}"
    return vocabulary


def id_tables(vocabulary: VocabularyMap, device: str) -> tuple[Tensor | None, Tensor | None]:
    """What the draft reads each token as, and the token of each of its columns; None: all are themselves."""
    draft_ids, column_ids = vocabulary.draft_ids, vocabulary.column_ids
    is_same = torch.equal(draft_ids, torch.arange(len(draft_ids), dtype=draft_ids.dtype))
    return None if is_same else draft_ids.to(device), None if column_ids is None else column_ids.to(device)


def fits(plan: RoundPlan) -> bool:
    """True for a tree that a round on the device has room for."""
    shape, num_children = plan.shape, plan.policy.num_children
    is_narrow = shape.verify_width <= NARROW_ROWS and shape.draft_width < NARROW_ROWS
    return is_narrow and num_children <= MOST_CHILDREN and shape.draft_width * num_children <= MOST_BATCH_CHILDREN
