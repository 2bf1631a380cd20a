"""The interface through which the engine uses a backend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from torch import Tensor

from forerun.backends.device_rounds import RoundPipeline, RoundPlan
from forerun.core.model_spec import ModelSpec
from forerun.model.backend import ModelBackend
from forerun.model.executor import Executor, ForwardInput
from forerun.model.program import Program
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WeightSource
from forerun.sharding.torch_group import TorchGroup

InputKind = Literal["float32", "bfloat16", "int16", "int8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """The work of one op of a pass.

    Args:
        name: what it computes, including fused ops; the same in every layer.
        weights: the format of its weight, or "" if it has none.
        num_bytes: bytes of its weight, or of the keys and values that attention reads. Small inputs that stay in the
            first-level caches are not counted.
        multiply_adds: number of multiply-adds for all rows of the pass.
        inputs: the format of the inputs that its weight is multiplied with.
    """

    name: str
    weights: str
    num_bytes: int
    multiply_adds: int
    inputs: InputKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTimes:
    """Seconds of the ops of one pass, each in a separate call, and of an empty call."""

    ops_s: Sequence[float]
    call_s: float


class KernelProbe(Protocol):
    """Measures the kernels of one executor."""

    @property
    def tier(self) -> str:
        """The name of the instruction set in use."""
        ...

    def work(self, inputs: ForwardInput) -> list[OpWork]:
        """The ops that this pass runs, in order."""
        ...

    def time_ops(self, inputs: ForwardInput) -> OpTimes:
        """Run the pass op by op, in order, so that the caches are in the same state as within a pass."""
        ...

    def read(self, memory: Tensor) -> None:
        """Read all of this memory in the way kernels read weights."""
        ...

    def multiply_adds(self, inputs: InputKind, num_rounds: int) -> int:
        """Run multiply-adds in registers only; returns their number, or 0 if the instructions are not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptWeights:
    """A place for the packed weights of one model.

    Args:
        folder: the folder with the packed weights of all models; created if it is missing.
        name: name of the model, for messages.
        about: the facts besides the kernels that the packed bytes depend on.
        num_bytes: size of the weights as stored in the checkpoint.
        is_whole: no sublayer is missing, so the packed weights can be used for every use of the model.
    """

    folder: Path
    name: str
    about: str
    num_bytes: int
    is_whole: bool


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
