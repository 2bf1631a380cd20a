"""Draft heads whose passes are parts of rounds on the device: torch's kernels on permanent buffers.

A pass can be recorded, as only the contents of its tensors depend on data: every index is a tensor on the device, and
every size is fixed.

Legend: T rows, N slots that a pass may see, S slots, E tree slots of a row, H hidden size of the head, F features of a
token, G size of a feature, W columns of scores.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from forerun.backends.gpu.model_on_device import SideOnDevice, vocabulary_of
from forerun.backends.gpu.row_table import PREFIX_LEN, RowTable
from forerun.backends.gpu.sampling.score_shaping import SCORE_BLOCK
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.backends.gpu.shared_memory import SPLIT
from forerun.backends.gpu.tree.device_tree import DeviceTree
from forerun.core.shared_length import shared_length
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.drafter import RoundPlan
from forerun.drafting.heads.eagle_network import EagleExecutor
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.layer import attend
from forerun.model.inputs import ForwardInput
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.model.step import Step


class HeadOnDevice(SideOnDevice):
    """A head, which keeps what it reads of the target's features in the target's own slots.

    Attributes:
        lag: how many tokens before its own a row needs the features.
        taps: the target's layers, ascending, whose outputs it reads.
        kept: what it keeps, as a cache [.., .., S, .., ..]; moves of the target's slots move it along.
    """

    lag: ClassVar[int]
    kept: Tensor
    _executor: HeadExecutor

    def __init__(self, runner: Runner, plan: RoundPlan, tree: DeviceTree, target: Runner) -> None:
        executor = runner.executor
        shape = tree.shape
        device = runner.device
        assert isinstance(executor, HeadExecutor), f"the executor of a head, not {type(executor)}"
        assert runner.cache.capacity >= target.cache.capacity, "each of the target's slots has one here"
        self._executor = executor
        self.taps = tuple(sorted(set(plan.taps)))
        self._columns_F = torch.tensor([self.taps.index(layer) for layer in plan.taps], device=device)
        most_rows = shape.most_behind + shape.width
        num_scores = runner.spec.vocab_size
        table = RowTable(max_rows=most_rows, max_tree_slots=most_rows * shape.stride, num_sublayers=0, device=device)
        super().__init__(
            runner, table, torch.zeros(shape.width, num_scores, device=device), num_rows=shape.width,
            num_children=shape.num_children, vocabulary=vocabulary_of(plan, runner, num_target=target.spec.vocab_size),
        )  # fmt: skip
        self.maxima = TileMaxima.for_vocabulary(
            self.num_columns, block=SCORE_BLOCK, max_rows=shape.width, is_topk=True, device=device
        )
        self._slots_S = torch.arange(runner.cache.capacity, device=device)
        self._first_known = 0

    def begin(self, token_ids: Sequence[int], owner: str) -> None:
        super().begin(token_ids, owner)
        num_cached = self.runner.cut(shared_length(self.runner.cached_ids, token_ids))
        self._executor.recognise(num_cached)
        self._first_known = len(token_ids)  # the root, which the target has not read yet

    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features [T, F, G] of tokens from this place on; these reach up to the root."""
        self._first_known = min(self._first_known, place)
        places_T = self._slots_S[place : place + len(features)]
        self.keep_features(features, places_T, places_T)

    def prefill(self) -> bool:
        """False: the text is read when all of it has its features."""
        return False

    @abstractmethod
    def keep_features(self, features_TFG: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        """Keep what the head reads of the target's features of the tokens in these slots, at these places of a text."""

    def catch_up(self, token_ids: Sequence[int]) -> None:
        runner = self.runner
        num_tokens = len(token_ids)
        first = runner.cut(shared_length(runner.cached_ids, token_ids))
        stop = max(first, min(self._first_known + self.lag, num_tokens))
        if stop > first:
            self._executor.clear(range(first, stop))
            runner.adopt(token_ids[first:stop])
        self._read_text(token_ids, stop)

    @abstractmethod
    def _read_text(self, token_ids: Sequence[int], first: int) -> None:
        """Make the cache hold this text from a place on from which on its features are known."""

    def launch_attention(self, num_rows: int, num_splits: int) -> None:
        self.pass_layers(num_rows, num_splits)

    def _states(self, features_TFG: Tensor) -> Tensor:
        features_TFG = features_TFG.index_select(1, self._columns_F).to(self.kept.dtype)
        return self._executor.states(features_TFG)


class EagleOnDevice(HeadOnDevice):
    """An EAGLE-3 head, whose rows start from states.

    A token's row starts from the state in the slot of the token before it. A token of the text leaves there what the
    head reads of the target's features, a drafted node the head's own state, until it is verified. A state of zeros is
    not known: the target restored that token from a saved text. A row behind it stays unseen.

    Attributes:
        states_SH: the states.
    """

    lag = 1
    _executor: EagleExecutor

    def __init__(self, runner: Runner, plan: RoundPlan, tree: DeviceTree, target: Runner) -> None:
        super().__init__(runner, plan, tree, target)
        cache = runner.cache
        shape = tree.shape
        assert isinstance(self._executor, EagleExecutor), f"the executor of an EAGLE-3 head, not {type(self._executor)}"
        self._stride = shape.stride
        size = self._executor.body.hidden_size
        self.states_SH = cache.keys_LSKD.new_zeros(cache.capacity, size)
        self.kept = self.states_SH[None, None, :, None]
        self._outputs_TH = cache.keys_LSKD.new_zeros(self.rows.max_rows, size)
        self._most_behind_text = serial_rows(plan.shape) + shape.horizon  # slots of a round, and of one still in flight

    def begin(self, token_ids: Sequence[int], owner: str) -> None:
        super().begin(token_ids, owner)
        self.states_SH.zero_()

    def keep_features(self, features_TFG: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        self.states_SH.index_copy_(0, slots_T, self._states(features_TFG))

    def _read_text(self, token_ids: Sequence[int], first: int) -> None:
        runner = self.runner
        num_tokens = len(token_ids)
        for start in range(first, num_tokens, PREFILL_ROWS):
            end = min(start + PREFILL_ROWS, num_tokens)
            inputs = ForwardInput(
                token_ids=list(token_ids[start:end]), positions=list(range(start, end)), first_slot=start,
                prefix_len=start, num_logit_rows=0,
            )  # fmt: skip
            states_TH = self.states_SH[start - 1 : end - 1]
            runner.play(Step(inputs=inputs), executor=self._executor.starting_from(states_TH))
            runner.keep(list(range(end - start)), inputs.token_ids)

    def pass_layers(self, num_rows: int, num_splits: int) -> None:
        rows = self.rows
        executor = self._executor
        states_SH = self.states_SH
        slots_T = rows.slots[:num_rows].long()
        starts_TH, sees_TN = self._read_table(num_rows, num_splits)
        is_known_T = (starts_TH != 0).any(1)
        executor.is_known_S.index_copy_(0, slots_T, is_known_T)
        num_seen = sees_TN.shape[1]

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_SKD = executor.cache.keys_LSKD[layer]
            values_SKD = executor.cache.values_LSKD[layer]
            keys_SKD.index_copy_(0, slots_T, k.masked_fill(~is_known_T[:, None, None], 0.0))  # see `HeadExecutor.clear`
            values_SKD.index_copy_(0, slots_T, v)
            return attend(q, keys_SKD[:num_seen], values_SKD[:num_seen], sees_TN)

        cos_sin_T2D = executor.cos_sin_P2D[rows.positions[:num_rows].long()]
        outputs_TH = executor.head.step(rows.token_ids[:num_rows].long(), starts_TH, cos_sin_T2D, mix)
        self._outputs_TH[:num_rows] = outputs_TH
        states_SH.index_copy_(0, slots_T, executor.head.next_states(outputs_TH))

    def write_scores(self, num_rows: int, first_row: int) -> None:
        logits_TW = self._executor.head.logits(self._outputs_TH[first_row:num_rows])
        self.score_rows.scores[: num_rows - first_row] = logits_TW

    def _read_table(self, num_rows: int, num_splits: int) -> tuple[Tensor, Tensor]:
        """The states from which the rows of the table start, [T, H], and which slots each of them sees, bool [T, N]."""
        rows = self.rows
        prefix_len = self.rows.header[PREFIX_LEN.value : PREFIX_LEN.value + 1]
        slots_S = self._slots_S
        num_seen = min(len(slots_S), (num_splits + 1) * SPLIT + self._most_behind_text)
        tree_TE = rows.tree_slots[: num_rows * self._stride].view(num_rows, self._stride).long()
        counts_T = (rows.lengths[:num_rows] - prefix_len).long()
        above_T = tree_TE.gather(1, (counts_T - 2).clamp(min=0)[:, None])[:, 0]
        above_T = torch.where(counts_T > 1, above_T, prefix_len - 1).clamp(min=0)
        own_TE = rows.slots[:num_rows, None].long()
        seen_TE = torch.where(slots_S[: self._stride] < counts_T[:, None], tree_TE, own_TE).clamp(max=num_seen - 1)
        is_text_N = self._executor.is_known_S[:num_seen] & (slots_S[:num_seen] < prefix_len)
        return self.states_SH[above_T], is_text_N.repeat(num_rows, 1).scatter_(1, seen_TE, True)
