"""A model, or what drafts for it, whose passes on the device end with sampled tokens or a top-k.

Legend: R rows of a pass, C children, V columns of scores.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.executor import DeviceExecutor
from forerun.backends.gpu.pass_shape import PassShape
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.sampling.join_tiles import Sampled, TopK
from forerun.backends.gpu.sampling.output_projection import OutputProjection
from forerun.backends.gpu.sampling.score_shaping import ScoreRows
from forerun.backends.gpu.sampling.stored_scores import write_scores
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.core.sublayers import NOTHING
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap


class SideOnDevice(ABC):
    """The target or what drafts for it, with the memory for sampling.

    Args:
        rows: the table of its passes.
        scores_RV: memory for scores.
        num_rows: the most rows of a pass that get scores.
        num_children: of a draft, 0 of the target.
        vocabulary: maps a draft's token ids to the target's.

    Attributes:
        step_s: seconds of growing the tree after the first pass, once; None: as long as that pass.
        taps: layers of the target, ascending, whose outputs it reads while the target reads a prompt.
    """

    maxima: TileMaxima
    step_s: float | None = None
    taps: tuple[int, ...] = ()

    def __init__(
        self, runner: Runner, rows: RowTable, scores_RV: Tensor, *, num_rows: int, num_children: int,
        vocabulary: VocabularyMap | None,
    ) -> None:  # fmt: skip
        self.runner = runner
        self.rows = rows
        self.vocabulary = vocabulary
        device = runner.device
        self.spare_slot = runner.cache.capacity - 1
        self.draft_ids, self.column_ids = (None, None) if vocabulary is None else id_tables(vocabulary, device)
        self.num_columns = runner.spec.vocab_size if vocabulary is None else vocabulary.num_columns
        self.score_rows = ScoreRows.over(scores_RV, num_rows=num_rows, num_columns=self.num_columns)
        shape = (num_rows, num_children)
        self.topk = TopK(torch.zeros(shape, dtype=torch.int32, device=device), torch.zeros(shape, device=device))

    def read(self, token_ids: Sequence[int]) -> Sequence[int]:
        """The target's tokens in this side's token ids."""
        return token_ids if self.vocabulary is None else self.vocabulary.read(token_ids)

    def start_request(self, token_ids: Sequence[int], owner: str) -> None:
        """Start a request with this text before its root."""
        self.runner.recall(self.read(token_ids), owner)

    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features [T, F, G] of tokens from this place on; a model uses none."""
        return

    def prefill(self) -> bool:
        """False: the text is read when all of it is there."""
        return False

    @abstractmethod
    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Make the cache hold this text, by passes of the host."""

    @abstractmethod
    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        """Run a pass over the first rows of the table, up to the scores."""

    @abstractmethod
    def launch_attention(self, num_rows: int, num_splits: int) -> None:
        """Launch every kernel of such a pass that depends on the number of splits."""

    @abstractmethod
    def write_scores(self, num_rows: int, first_row: int) -> None:
        """Write the scores of the last pass's rows from `first_row` on to `score_rows`."""


class ModelOnDevice(SideOnDevice):
    """A model: the target, or the draft if `num_children` is given.

    Args:
        num_rows: the most rows of a pass.
        taps: layers whose outputs every pass keeps in `features_RFG`, [most rows, taps, hidden size].
    """

    def __init__(
        self, runner: Runner, *, num_rows: int, num_children: int = 0, vocabulary: VocabularyMap | None = None,
        taps: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        assert isinstance(runner.executor, DeviceExecutor), "rounds on the device need the device executor"
        self.executor = runner.executor
        self._taps = taps
        device = runner.device
        spec = runner.spec
        super().__init__(
            runner, self.executor.rows, self.executor.logits_RV, num_rows=num_rows, num_children=num_children,
            vocabulary=vocabulary,
        )  # fmt: skip
        self.features_RFG = self.executor.buffers.features(len(taps))
        self.maxima = TileMaxima.for_vocabulary(
            spec.vocab_size, block=self.executor.head.tiles.block_out, max_rows=num_rows,
            is_topk=num_children > 0, device=device,
        )  # fmt: skip
        self.head = OutputProjection(
            h=self.executor.buffers.h, packed=self.executor.head, norm=self.executor.head_norm,
            workspace=self.executor.buffers.workspace, maxima=self.maxima, overlaps=self.executor.overlaps,
        )  # fmt: skip
        self.sampled = Sampled(
            torch.zeros(num_rows, dtype=torch.int32, device=device), *torch.zeros(2, num_rows, device=device)
        )

    def catch_up(self, token_ids: Sequence[int]) -> None:
        self.runner.sync(self.read(token_ids))

    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        self.executor.launch_layers(self._shape(num_rows, num_splits))

    def launch_attention(self, num_rows: int, num_splits: int) -> None:
        self.executor.launch_attention(self._shape(num_rows, num_splits))

    def write_scores(self, num_rows: int, first_row: int) -> None:
        write_scores(self.head, self.score_rows, num_rows=num_rows, first_row=first_row)

    def _shape(self, num_rows: int, num_splits: int) -> PassShape:
        return PassShape(
            num_rows=num_rows, num_splits=num_splits, num_logit_rows=num_rows, skipped=NOTHING, taps=self._taps
        )


def vocabulary_of(plan: RoundPlan, draft: Runner, *, num_target: int) -> VocabularyMap:
    """The map between the draft's and the target's token ids."""
    num_draft = draft.spec.vocab_size
    vocabulary = plan.vocabulary or VocabularyMap.of_equal_ids(num_target=num_target, num_draft=num_draft)
    num_ids = len(vocabulary.draft_ids)
    assert num_ids == num_target, f"a kernel would read past {num_ids} ids where the target has {num_target}"
    return vocabulary


def id_tables(vocabulary: VocabularyMap, device: str) -> tuple[Tensor | None, Tensor | None]:
    """The draft's id of each target token, and the target token of each draft column; None: the ids are equal."""
    num_ids = len(vocabulary.draft_ids)
    column_ids = vocabulary.column_ids
    draft_ids = torch.tensor(vocabulary.read(range(num_ids)), dtype=torch.int32)
    is_same = torch.equal(draft_ids, torch.arange(num_ids, dtype=torch.int32))
    return None if is_same else draft_ids.to(device), None if column_ids is None else column_ids.to(device)
