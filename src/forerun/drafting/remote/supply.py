"""What the target's end needs of the world: connections to workers, one after another."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from forerun.drafting.remote.messages import Hello
from forerun.drafting.remote.worker import Wire

HelloCheck: TypeAlias = Callable[[Hello], str | None]  # what is wrong with a worker, None: nothing


class WorkerWire(Wire, Protocol):
    """A wire that this end can hang up."""

    def close(self) -> None: ...


class WorkerSupply(Protocol):
    """Connections to a worker, as `wires.supervisor` gives them."""

    @property
    def trouble(self) -> str: ...

    @property
    def pid(self) -> int | None: ...

    def take(self) -> WorkerWire | None: ...

    def wait(self, timeout_s: float) -> WorkerWire | None: ...

    def is_starved(self) -> bool: ...

    def replace(self) -> None: ...

    def praise(self) -> None: ...

    def close(self) -> None: ...
