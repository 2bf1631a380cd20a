"""The interface of a backend to the engine."""

from collections.abc import Callable, Sequence
from typing import Protocol

from forerun.decoding.decoder import Decoder
from forerun.drafting.drafter import Drafter
from forerun.model.backend import ModelBackend
from forerun.model.rank_group import RankGroup
from forerun.model.runner import Runner


class Backend(ModelBackend, Protocol):
    """One machine's way to run a model, and to decode with it."""

    def decoders(self, target: Runner, drafter: Drafter) -> Sequence[Decoder]:
        """What plays whole rounds of these two without the host, the fastest first; mostly nothing does."""
        return ()

    def group_memory(self, num_ranks: int) -> int | None:
        """The descriptor of memory through which ranks of this host can exchange what they computed; None where there
        is none, and they need torch.distributed."""
        return None

    def host_group(
        self, descriptor: int, rank: int, num_ranks: int, blame: Callable[[], str | None] = lambda: None
    ) -> RankGroup:
        """A rank's end of it.

        Args:
            blame: who was lost and how, as far as this process knows.
        """
        raise AssertionError(f"{self.name} has no memory for ranks")
