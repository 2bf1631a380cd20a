"""The interface of a backend to the engine."""

from collections.abc import Sequence
from typing import Protocol

from forerun.decoding.decoder import Decoder
from forerun.drafting.drafter import Drafter
from forerun.model.backend import ModelBackend
from forerun.model.runner import Runner


class Backend(ModelBackend, Protocol):
    """One machine's way to run a model, and to decode with it."""

    def decoders(self, target: Runner, drafter: Drafter) -> Sequence[Decoder]:
        """What plays whole rounds of these two without the host, the fastest first; mostly nothing does."""
        return ()
