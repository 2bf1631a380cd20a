"""A draft head's cache and the passes that fill it.

Legend: T rows, S slots, L layers, K key/value heads, D head size, H hidden size of the head, F features of a token,
G size of a feature.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import torch
from torch import Tensor

from forerun.core.model_spec import ModelSpec
from forerun.core.threads import inference, torch_on_one_thread
from forerun.model.executor import Executor, ForwardInput, ForwardOutput, Observer
from forerun.model.rope import rope_table
from forerun.model.tree_cache import TreeCache

FEW_ROWS: Final = 32
T = TypeVar("T")


class HeadExecutor(ABC):
    """An `Executor` of a head, and a cache in which some slots may hold no row.

    Args:
        states_of: the head's formula for what it reads, [T, H], of the target's features [T, F, G].
        is_known_S: see below; all slots by default.

    Attributes:
        is_known_S: bool, the slots that hold a row; nothing attends to the others.
    """

    def __init__(
        self,
        body: ModelSpec,
        cache: TreeCache,
        states_of: Callable[[Tensor], Tensor],
        is_known_S: Tensor | None = None,
    ) -> None:
        self.body = body
        self.cache = cache
        self._states_of = states_of
        self.device = cache.keys_LSKD.device
        self.is_known_S = all_known(cache) if is_known_S is None else is_known_S

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """One pass of rows without features: of rows that start from zeros, for measuring."""
        zeros_TH = self.cache.keys_LSKD.new_zeros(len(inputs.token_ids), self.body.hidden_size)
        return self.starting_from(zeros_TH).run(inputs)

    def states(self, features: Tensor) -> Tensor:
        """[T, H], what the head reads of the target's features."""
        with inference():
            return without_waking(len(features), lambda: self._states_of(features))

    @abstractmethod
    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """One pass of rows that start from these states."""

    def starting_from(self, states_TH: Tensor) -> Executor:
        """An executor of one pass whose rows start from these states."""
        return StatesPass(self, states_TH)

    def clear(self, slots: Sequence[int]) -> None:
        """Mark slots as holding no row: the target's features of their tokens are not known.

        Their keys are zeros, so that a copy of them among saved texts can be told, too.
        """
        with inference():
            self.cache.storage_2LSKD[:, :, list(slots)] = 0.0
            self.is_known_S[list(slots)] = False

    def recognise(self, num_slots: int) -> None:
        """Find which of the first slots hold a row, after the cache was filled from saved texts."""
        with inference():
            self.is_known_S[:num_slots] = (self.cache.keys_LSKD[0, :num_slots] != 0).flatten(1).any(1)

    def ids(self, token_ids: Sequence[int]) -> Tensor:
        """The tokens on the head's device."""
        return torch.tensor(token_ids, device=self.device)


class StatesPass:
    """An executor whose rows start from given states, for one pass."""

    def __init__(self, executor: HeadExecutor, states_TH: Tensor) -> None:
        self._executor = executor
        self._states_TH = states_TH

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """Run the pass."""
        executor = self._executor
        states_TH = self._states_TH
        with inference():
            executor.is_known_S[inputs.first_slot : inputs.num_slots] = True
            return without_waking(len(states_TH), lambda: executor.compute(inputs, states_TH))


def all_known(cache: TreeCache) -> Tensor:
    """bool [S]: every slot of a cache holds a row."""
    return torch.ones(cache.capacity, dtype=torch.bool, device=cache.keys_LSKD.device)


def without_waking(num_rows: int, work: Callable[[], T]) -> T:
    """Do the work of these rows; torch's calls use one thread if the rows are few.

    Waking torch's threads takes longer than what they would compute, and they then compete with the kernels' threads.
    """
    return torch_on_one_thread(work) if num_rows <= FEW_ROWS else work()


def rotations(body: ModelSpec, cache: TreeCache) -> Tensor:
    """[P, 2, D], the rotations of all places of a cache, see `model.rope`."""
    keys_LSKD = cache.keys_LSKD
    return rope_table(body.rope, body.head_dim, cache.capacity, dtype=keys_LSKD.dtype, device=str(keys_LSKD.device))
