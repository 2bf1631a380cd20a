"""Draft heads whose passes are parts of rounds on the device: torch's kernels on permanent buffers.

A pass can be recorded, as only the contents of its tensors depend on data: every index is a tensor on the device, and
every size is fixed.

Legend: T rows, S slots, H hidden size of the head, F features of a token, G size of a feature, W columns of scores.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.model_on_device import SideOnDevice, vocabulary_of
from forerun.backends.gpu.row_table import RowTable
from forerun.backends.gpu.sampling.score_shaping import SCORE_BLOCK
from forerun.backends.gpu.sampling.tile_maxima import TileMaxima
from forerun.backends.gpu.tree.device_tree import DeviceTree
from forerun.core.model_spec import ModelSpec
from forerun.core.shared_length import shared_length
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache


@runtime_checkable
class HostHead(Protocol):
    """What all such heads need of the executor that the host runs, see `drafting.heads.executor`."""

    body: ModelSpec
    cache: TreeCache
    is_known_S: Tensor

    def states(self, features: Tensor) -> Tensor:
        """[T, H], what the head reads of the target's features."""
        ...

    def clear(self, slots: Sequence[int]) -> None:
        """Mark slots as holding no row."""
        ...

    def recognise(self, num_slots: int) -> None:
        """Find which of the first slots hold a row."""
        ...


class HeadOnDevice(SideOnDevice):
    """A head, which keeps what it reads of the target's features in the target's own slots.

    Attributes:
        kind: the name of its kind in a `RoundPlan`.
        rereads, follows: see `TreeShape`.
        lag: how many tokens before its own a row needs the features.
        kept: what it keeps, as a cache [.., .., S, .., ..]; moves of the target's slots move it along.
    """

    kind: ClassVar[str]
    rereads: ClassVar[bool] = False
    follows: ClassVar[bool] = False
    lag: ClassVar[int]
    kept: Tensor
    _executor: HostHead

    def __init__(self, runner: Runner, plan: RoundPlan, tree: DeviceTree, target: Runner) -> None:
        executor = runner.executor
        shape = tree.shape
        device = runner.device
        assert isinstance(executor, HostHead), f"the executor of a head, not {type(executor)}"
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

    def start_request(self, token_ids: Sequence[int], owner: str) -> None:
        super().start_request(token_ids, owner)
        num_cached = self.runner.cut(shared_length(self.runner.cached_ids, token_ids))
        self._executor.recognise(num_cached)
        self._first_known = len(token_ids)  # the root, which the target has not read yet

    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features [T, F, G] of tokens from this place on; these reach up to the root."""
        self._first_known = min(self._first_known, place)
        places_T = self._slots_S[place : place + len(features)]
        self.keep_features(features, places_T, places_T)

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
