"""The interface through which the engine uses a backend."""

from collections.abc import Callable
from typing import Any, Protocol, Self

from torch import Tensor

from forerun.backends.kept_weights import KeptWeights
from forerun.backends.kernel_probe import KernelProbe
from forerun.backends.rounds import RoundPipeline, RoundPlan
from forerun.core.model_spec import ModelSpec
from forerun.model.backend import ModelBackend
from forerun.model.forward import Executor, ForwardInput
from forerun.model.program import Program
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sharding.torch_group import TorchGroup


class DraftLayers(Protocol):
    """Layers of a draft that a backend runs in one call."""

    def run(self, inputs: ForwardInput, x_TH: Tensor, h_TH: Tensor) -> Tensor:
        """The buffer x after a pass that began with these buffers x and h; valid until the next pass."""
        ...


class Backend(ModelBackend, Protocol):
    """Runs a model on one kind of machine, and decodes with it."""

    def plays_rounds(self, target: Runner, plan: RoundPlan) -> bool:
        """Whether it plays whole rounds of this plan without the host; usually not."""
        return False

    def rounds(self, target: Runner, plan: RoundPlan) -> RoundPipeline:
        """Such rounds, if `plays_rounds`."""
        raise AssertionError(f"{self.name} plays no rounds")

    def keeping(self, kept: KeptWeights) -> Self:
        """The same backend, which saves the weights that it packs; most backends pack none."""
        return self

    def draft_layers(
        self, spec: ModelSpec, program: Program, weights: WeightSource, cache: TreeCache, is_known_S: Tensor
    ) -> DraftLayers | None:
        """This program of a draft's layers, bound to weights and a cache; None: the backend runs none, and has not read
        the weights.

        Args:
            program: from the buffers x and h to x.
            is_known_S: bool, the slots that hold a row; nothing attends to the others.
        """
        return None

    def kernel_probe(self, executor: Executor) -> KernelProbe | None:
        """Measures the kernels of this executor one by one; None if the backend cannot time them separately."""
        return None

    def select_tier(self, name: str | None) -> bool:
        """Use the kernels of this instruction set from now on (None: the best one). False if there are none."""
        return name is None

    def group_memory(self, num_ranks: int) -> int | None:
        """The file descriptor of memory through which ranks of this host can exchange results; None if the backend has
        none, and ranks need a store."""
        return None

    def host_group(self, descriptor: int, rank: int, num_ranks: int, blame: Callable[[], str | None]) -> RankGroup:
        """The group of ranks that share this memory, for one rank.

        Args:
            blame: returns which rank was lost and how, as far as this process knows.
        """
        raise AssertionError(f"{self.name} has no memory for ranks")

    def group(
        self, store: Any, rank: int, num_ranks: int, *, device: str, address: str, blame: Callable[[], str | None]
    ) -> RankGroup:
        """A group of ranks without such memory, for one rank. By default it uses torch.distributed.

        Args:
            store: a torch.distributed.Store through which the ranks find each other.
            device: device of the exchanged tensors.
            address: address of the network interface through which this rank reaches the others.
        """
        return TorchGroup(store, rank, num_ranks, device=device, address=address, blame=blame)
