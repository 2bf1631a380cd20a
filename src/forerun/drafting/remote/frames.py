"""The frames that cross between target and drafter, and the connection that carries them."""

from typing import Final, Protocol, get_args

from forerun.drafting.remote.messages import Message, check
from forerun.wires.frames import MessageKinds

KINDS: Final = MessageKinds[Message](*get_args(Message), check=check)
MAX_FAULTS: Final = 16  # faulty frames after which a peer is disconnected


class Wire(Protocol):
    """A byte connection to one peer; `wires.channel` implements it."""

    @property
    def is_open(self) -> bool: ...

    def send(self, data: bytes) -> bool: ...

    def receive(self) -> bytes: ...

    def wait(self, timeout_s: float | None) -> bool: ...

    def close(self) -> None: ...
