"""A DFlash head, or one of its successors, whose rounds run on the device.

Legend: T rows, W nodes of a batch, S slots, B rows of its pass, D tokens that it predicts, H hidden size of the
head, F features of a token, G size of a feature, V columns of logits.
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.head_on_device import HeadOnDevice, HostHead
from forerun.backends.gpu.shared_memory import SPLIT
from forerun.backends.gpu.tree.device_tree import COMMITTED, DeviceTree
from forerun.model.executor import ForwardOutput
from forerun.model.runner import Runner


@runtime_checkable
class HostDFlash(HostHead, Protocol):
    """The executor of a DFlash head: its pass has `num_rows` rows, all but the first with the mask."""

    num_rows: int
    num_drafted: int
    mask_token_id: int

    def predict(self, ids_B: Tensor, places_B: Tensor, num_seen: int) -> ForwardOutput:
        """One pass behind the text."""
        ...

    def write_text(self, states_TH: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        """Write the keys and values of tokens at these places of the text into these slots."""
        ...

    def logits_after(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """Logits given each row's parent token."""
        ...


class DFlashOnDevice(HeadOnDevice):
    """A DFlash head: the first pass of a round predicts tokens, in which all batches of its tree are expanded.

    The keys and values of the target's verified rows stand in the same slots as the target's, and move along.
    """

    kind = "DFlash"
    follows = True
    lag = 0
    step_s = 50e-6  # of about 20 short kernels; not measured
    _executor: HostDFlash

    def __init__(self, runner: Runner, plan: RoundPlan, tree: DeviceTree, target: Runner) -> None:
        super().__init__(runner, plan, tree, target)
        executor = self._executor
        assert isinstance(executor, HostDFlash), f"the executor of a DFlash head, not {type(executor)}"
        assert runner.cache.capacity >= target.cache.capacity + executor.num_rows, "its pass stands behind the text"
        self._committed_1 = tree.header[COMMITTED.value : COMMITTED.value + 1]
        self._width = tree.draft_width
        self.kept = runner.cache.storage_2LSKD
        self._masks = self.rows.token_ids.new_full((executor.num_rows - 1,), executor.mask_token_id)
        self._logits_DV = self.kept.new_zeros(executor.num_drafted, runner.spec.vocab_size)
        self._outputs_DH = self.kept.new_zeros(executor.num_drafted, executor.body.hidden_size)

    def keep_features(self, features_TFG: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        self._executor.write_text(self._states(features_TFG), slots_T, places_T)
        self._executor.is_known_S.index_fill_(0, slots_T, True)

    def _read_text(self, token_ids: Sequence[int], first: int) -> None:
        self.runner.adopt(token_ids[first:])

    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        first_row = num_rows - self._width
        size = self._executor.num_rows
        if first_row == 0:  # The first pass of the round, which has more rows, has predicted the tokens.
            return
        num_seen = min(len(self._slots_S), (num_splits + 1) * SPLIT + size)
        ids_B = torch.cat((self.rows.token_ids[first_row : first_row + 1], self._masks)).long()
        output = self._executor.predict(ids_B, self._committed_1 + self._slots_S[:size], num_seen)
        assert output.features is not None, "the outputs of a pass"
        self._logits_DV.copy_(output.logits)
        self._outputs_DH.copy_(output.features[:, 0])

    def write_scores(self, num_rows: int, first_row: int) -> None:
        """Write those of the batch's nodes: of the row at a node's depth, given the node's token."""
        nodes = slice(first_row, num_rows)
        num_drafted = len(self._logits_DV)
        root_1 = self._committed_1.long()
        depths_W = self.rows.positions[nodes].long() - root_1
        parents_W = self.rows.token_ids[nodes].long()
        drafted_W = depths_W.clamp(0, num_drafted - 1)
        logits_WV = self._logits_DV[drafted_W]
        outputs_WH = self._outputs_DH[drafted_W]
        logits_WV = self._executor.logits_after(logits_WV, outputs_WH, parents_W)
        is_read_1 = (root_1 > 0) & self._executor.is_known_S[(root_1 - 1).clamp(min=0)]
        is_drafted_W = is_read_1 & (depths_W < num_drafted)
        self.score_rows.scores[: len(logits_WV)] = logits_WV.masked_fill(~is_drafted_W[:, None], -math.inf)
