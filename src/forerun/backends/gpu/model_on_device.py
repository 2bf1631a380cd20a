"""A model whose passes on the device end with sampled tokens or a top-k.

Legend: R rows of a pass, C children, V columns of scores.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.backends.gpu.executor import DeviceExecutor
from forerun.backends.gpu.pass_shape import PassShape
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.sampling.lm_head import LmHead
from forerun.backends.gpu.sampling.score_shaping import ScoreRows
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.core.sublayers import NOTHING
from forerun.drafting.drafter import RoundPlan
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap


class ModelOnDevice:
    """One model with the memory for sampling: the target, or the draft if `num_children` is given.

    Args:
        num_rows: the most rows of a pass.
        vocabulary: maps a draft's token ids to the target's.
    """

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
        num_columns = spec.vocab_size if vocabulary is None else vocabulary.num_columns
        self.score_rows = ScoreRows.over(self.executor.logits_RV, num_rows=num_rows, num_columns=num_columns)
        topk_shape = (num_rows, num_children or 0)
        self.topk = TopK(
            torch.zeros(topk_shape, dtype=torch.int32, device=device), torch.zeros(topk_shape, device=device)
        )

    def read(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The target's tokens in this model's token ids."""
        return token_ids if self.vocabulary is None else self.vocabulary.read(token_ids)

    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        """Run a pass over the rows of the executor's table, without the head."""
        self.executor.launch_layers(shape_of_layers(num_rows, num_splits))

    def launch_attention(self, num_rows: int, num_splits: int) -> None:
        """See `DeviceExecutor.launch_attention`."""
        self.executor.launch_attention(shape_of_layers(num_rows, num_splits))


def shape_of_layers(num_rows: int, num_splits: int) -> PassShape:
    return PassShape(num_rows=num_rows, num_splits=num_splits, num_logit_rows=num_rows, skipped=NOTHING)


def vocabulary_of(plan: RoundPlan, draft: Runner, *, num_target: int) -> VocabularyMap:
    """The map between the draft's and the target's token ids."""
    num_draft = draft.spec.vocab_size
    vocabulary = plan.vocabulary or VocabularyMap.of_equal_ids(num_target=num_target, num_draft=num_draft)
    num_ids = len(vocabulary.draft_ids)
    assert num_ids == num_target, f"a kernel would read past {num_ids} ids where the target has {num_target}"
    return vocabulary


def id_tables(vocabulary: VocabularyMap, device: str) -> tuple[Tensor | None, Tensor | None]:
    """The draft's id of each target token, and the target token of each draft column; None: the ids are equal."""
    draft_ids, column_ids = vocabulary.draft_ids, vocabulary.column_ids
    is_same = torch.equal(draft_ids, torch.arange(len(draft_ids), dtype=draft_ids.dtype))
    return None if is_same else draft_ids.to(device), None if column_ids is None else column_ids.to(device)
