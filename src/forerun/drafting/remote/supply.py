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
    """Gives connections to a worker, one after another: `wires.supervisor` here, `wires.remote_worker` elsewhere."""

    @property
    def trouble(self) -> str:
        """Why there is no worker just now, in words; empty when nothing is wrong."""
        ...

    @property
    def pid(self) -> int | None:
        """The present worker, where it is a process of this machine."""
        ...

    def take(self) -> WorkerWire | None:
        """A fresh connection if one has come up; never blocks."""
        ...

    def wait(self, timeout_s: float) -> WorkerWire | None:
        """The same, waiting for it. None when time is up, or there will be none."""
        ...

    def is_starved(self) -> bool:
        """True when the worker could run and is not let: it is silent for no fault of its own."""
        ...

    def replace(self) -> None:
        """The present worker is of no use: end it, and bring up another one."""
        ...

    def mark_healthy(self) -> None:
        """The present worker has done good work: its end, when it comes, is no failed start."""
        ...

    def close(self) -> None:
        """End it all."""
        ...
