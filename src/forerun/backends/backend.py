"""The interface of a backend to the engine."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

from forerun.backends.kept_weights import KeptWeights
from forerun.backends.kernel_probe import KernelProbe
from forerun.decoding.decoder import Decoder
from forerun.drafting.drafter import Drafter
from forerun.model.backend import ModelBackend
from forerun.model.executor import Executor
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner
from forerun.sharding.torch_group import TorchGroup


class Backend(ModelBackend, Protocol):
    """One machine's way to run a model, and to decode with it."""

    def decoders(self, target: Runner, drafter: Drafter) -> Sequence[Decoder]:
        """What plays whole rounds of these two without the host, the fastest first; mostly nothing does."""
        return ()

    def keeping(self, kept: KeptWeights) -> Self:
        """The same backend, which keeps what it packs of a file's codes; most pack nothing."""
        return self

    def kernel_probe(self, executor: Executor) -> KernelProbe | None:
        """What measures the kernels of this backend's executor one by one; None where they cannot be told apart."""
        return None

    def select_tier(self, name: str | None) -> bool:
        """Take the kernels of this instruction set from now on, None: of the best one. False where there are none."""
        return name is None

    def group_memory(self, num_ranks: int) -> int | None:
        """The descriptor of memory through which ranks of this host can exchange what they computed; None where there
        is none, and they need a store."""
        return None

    def host_group(
        self, descriptor: int, rank: int, num_ranks: int, blame: Callable[[], str | None] = lambda: None
    ) -> RankGroup:
        """A rank's end of it.

        Args:
            blame: who was lost and how, as far as this process knows.
        """
        raise AssertionError(f"{self.name} has no memory for ranks")

    def group(
        self, store: Any, rank: int, num_ranks: int, *, device: str, address: str, blame: Callable[[], str | None]
    ) -> RankGroup:
        """A rank's end of a group without such memory: by torch.distributed, where the backend has nothing of its own.

        Args:
            store: where the ranks find each other, a torch.distributed.Store.
            device: of the tensors that are exchanged.
            address: of the interface by which this rank reaches the others.
        """
        return TorchGroup(store, rank, num_ranks, device=device, address=address, blame=blame)
