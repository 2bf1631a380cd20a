"""A leader's messages to its followers, and their answers."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from socket import socket
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.core.config import DTypeName, EngineConfig, Exactness, InputsName, KernelsName, WeightsName
from forerun.core.errors import require
from forerun.core.model_spec import CacheFormat
from forerun.model.executor import CacheMove, ForwardInput, TextMove, Told
from forerun.wires.frames import FrameReader, MessageKinds

READY: Final = b"ready"  # a follower sends it once its part is loaded
GAVE_UP: Final = b"lost another"  # a follower's last message if it ends because another rank was lost
ANSWER: Final = b"."  # to a liveness check
MAX_RECEIVED_BYTES: Final = 1 << 16  # per call: the longest passes are some kilobytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """The first message; followers end unless their forerun has the same version."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOpening:
    """The second message: what all ranks must share.

    Args:
        model: identity of the leader's model.
        device: kind of device, the same on all ranks.
        memory: descriptor of the shared memory through which ranks exchange tensors, see `Backend.group_memory`.
        address: of the leader's interface at which ranks without shared memory connect.
        port: the port at that address.
        capacity: slots of the cache.
    """

    model: str
    device: str
    rank: int
    num_ranks: int
    memory: int | None
    address: str
    port: int
    capacity: int
    exactness: Exactness
    dtype: DTypeName
    weights: WeightsName
    inputs: InputsName
    cache: CacheFormat
    kernels: KernelsName
    cache_bytes: int

    def config(self, own: EngineConfig) -> EngineConfig:
        """A follower's config: the leader's settings, on its own device."""
        return replace(
            own,
            target_ranks=self.num_ranks,
            dtype=self.dtype,
            weights=self.weights,
            inputs=self.inputs,
            cache=self.cache,
            kernels=self.kernels,
            cache_bytes=self.cache_bytes,
        )


class Signal(Enum):
    """Messages without content."""

    GO = "go"  # all ranks are ready
    QUESTION = "question"  # a liveness check of a rank of another host


ToFollower: TypeAlias = Greeting | GroupOpening | Signal | Told


def pack_mask(mask: NDArray[np.bool_]) -> tuple[int, int, bytes]:
    return *mask.shape, np.packbits(mask).tobytes()


def unpack_mask(_: type, packed: Any) -> NDArray[np.bool_]:
    num_rows, num_columns, data = packed
    num_bits = num_rows * num_columns
    require(8 * len(data) - 7 <= num_bits <= 8 * len(data), f"{len(data)} bytes for {num_rows} rows of {num_columns}")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=num_bits).view(np.bool_).reshape(num_rows, num_columns)


KINDS: Final = MessageKinds[ToFollower](
    Greeting, GroupOpening, Signal, CacheMove, TextMove, ForwardInput, enc_hook=pack_mask, dec_hook=unpack_mask
)


def to_frame(message: ToFollower) -> bytes:
    """The message as a frame. Owners are only compared, so they go as ASCII: MessagePack has no lone surrogates."""
    if isinstance(message, TextMove) and message.owner is not None:
        message = replace(message, owner=ascii(message.owner))
    return KINDS.to_frame(message)


def messages_from(control: socket) -> Iterator[ToFollower]:
    """All messages of a leader, until it hangs up.

    Raises:
        ConfigError: the other side is not a leader.
    """
    reader = FrameReader(KINDS)
    with suppress(OSError):  # the leader may end without closing the connection
        while data := control.recv(MAX_RECEIVED_BYTES):
            yield from reader.feed(data)
            require(
                reader.num_faults == 0,
                "the other side does not lead ranks: give a leader's address, and run the same forerun on all hosts",
            )
