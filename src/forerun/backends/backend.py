"""The interface through which the engine uses a backend."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from forerun.backends.kept_weights import KeptWeights
from forerun.backends.kernel_probe import KernelProbe
from forerun.core.head_spec import DFlashSpec, EagleSpec, MadeSpec
from forerun.decoding.decoder import Decoder
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.dflash_network import DFlashExecutor, DFlashHead
from forerun.drafting.heads.eagle_network import EagleExecutor, TorchEagleHead
from forerun.drafting.heads.executor import HeadExecutor
from forerun.drafting.heads.layer import Embed, HeadWeights
from forerun.model.backend import Linear, ModelBackend
from forerun.model.executor import Executor
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.sharding.torch_group import TorchGroup


class Backend(ModelBackend, Protocol):
    """Runs a model on one kind of machine, and decodes with it."""

    def decoders(self, target: Runner, drafter: Drafter) -> Sequence[Decoder]:
        """Decoders that run whole rounds of these two without the host, fastest first; usually empty."""
        return ()

    def plays_rounds(self, target: Runner, drafter: Drafter) -> bool:
        """Whether `decoders` has any for these two."""
        return False

    def keeping(self, kept: KeptWeights) -> Self:
        """The same backend, which saves the weights that it packs; most backends pack none."""
        return self

    def head_executor(
        self, spec: MadeSpec, weights: HeadWeights, embed: Embed, output: Linear, cache: TreeCache
    ) -> HeadExecutor:
        """A draft head bound to its cache; the default calls torch.

        Args:
            weights: the head's own; its linear layers are those of `draft_linear`.
            embed, output: see `EagleHead`.
        """
        match spec:
            case EagleSpec():
                return EagleExecutor(TorchEagleHead(spec, weights, embed, output), cache)
            case DFlashSpec():
                return DFlashExecutor(DFlashHead(spec, weights, embed, output), cache)

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
