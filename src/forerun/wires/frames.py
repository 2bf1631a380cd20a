"""Messages between processes as checked frames of bounded size.

A message is a dataclass or a msgspec Struct, encoded as MessagePack, never as pickle. Its class gives the types, ranges
and lengths that a received message must have.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

from msgspec import DecodeError
from msgspec.msgpack import Decoder, Encoder

from forerun.core.errors import ConfigError

MAGIC: Final = b"FrRn"
VERSION: Final = 7
HEAD: Final = struct.Struct("<4sBBHII")  # magic, version, kind, reserved, payload length, payload CRC
HEAD_CRC: Final = struct.Struct("<I")  # CRC of the head, so that the reader never waits because of a damaged length
HEAD_SIZE: Final = HEAD.size + HEAD_CRC.size
MAX_PAYLOAD: Final = 10 << 20  # bytes: a prompt of two million tokens

MessageT = TypeVar("MessageT")


class MessageKinds(Generic[MessageT]):
    """The messages of one sort of connection.

    Args:
        types: the class of each kind; the first one is kind 1.
        check: raises ValueError or ConfigError for a received message with values that its class does not exclude.
        enc_hook, dec_hook: encode and decode types that MessagePack lacks, see msgspec.
    """

    def __init__(
        self,
        *types: type[MessageT],
        check: Callable[[MessageT], object] = lambda _: None,
        enc_hook: Callable[[Any], Any] | None = None,
        dec_hook: Callable[[type, Any], Any] | None = None,
    ) -> None:
        self._kinds = {type_: kind for kind, type_ in enumerate(types, 1)}
        self._encoder = Encoder(enc_hook=enc_hook)
        self._decoders = {kind: Decoder(type_, dec_hook=dec_hook) for type_, kind in self._kinds.items()}
        self._check = check

    def to_frame(self, message: MessageT) -> bytes:
        """The message as one frame, which `FrameReader` decodes."""
        payload = self._encoder.encode(message)
        assert len(payload) <= MAX_PAYLOAD, f"a payload of {len(payload)} bytes"
        head = HEAD.pack(MAGIC, VERSION, self._kinds[type(message)], 0, len(payload), crc32(payload))
        return head + HEAD_CRC.pack(crc32(head)) + payload

    def read(self, kind: int, payload: bytes) -> MessageT | None:
        """The message of a payload; None if it is invalid."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            return None
        try:
            message = decoder.decode(payload)
            self._check(message)
        except (DecodeError, ValueError, ConfigError):
            return None
        return message


class FrameReader(Generic[MessageT]):
    """Decodes messages from bytes that arrive in pieces of any size, untrusted or damaged.

    It skips invalid bytes up to the next possible start of a frame, and counts them as a fault. So a damaged frame does
    not affect later ones. At most one frame's bytes are held.
    """

    def __init__(self, kinds: MessageKinds[MessageT]) -> None:
        self._kinds = kinds
        self._held = b""
        self._is_skipping = False
        self.num_faults = 0

    def feed(self, data: bytes) -> list[MessageT]:
        """The messages completed by `data`, in order."""
        held = self._held + data
        place = 0
        messages: list[MessageT] = []
        while True:
            start = _next_start(held, place)
            if start > place:
                self.num_faults += not self._is_skipping  # once for each run of invalid bytes
                self._is_skipping = True
            place = start
            if len(held) - place < HEAD_SIZE:
                break
            _, version, kind, reserved, length, payload_crc = HEAD.unpack_from(held, place)
            (head_crc,) = HEAD_CRC.unpack_from(held, place + HEAD.size)
            is_head = version == VERSION and reserved == 0 and length <= MAX_PAYLOAD
            is_head = is_head and head_crc == crc32(held[place : place + HEAD.size])
            end = place + HEAD_SIZE + length
            if is_head and end > len(held):
                break  # the rest has not arrived yet
            payload = held[place + HEAD_SIZE : end]
            message = self._kinds.read(kind, payload) if is_head and payload_crc == crc32(payload) else None
            if message is None:
                self.num_faults += 1
                self._is_skipping = True
                place += 1
            else:
                self._is_skipping = False
                messages.append(message)
                place = end
        self._held = held[place:]
        return messages


def _next_start(held: bytes, place: int) -> int:
    """The next offset where a frame begins, or may begin once more bytes have arrived."""
    found = held.find(MAGIC, place)
    if found >= 0:
        return found
    tails = range(max(place, len(held) - len(MAGIC) + 1), len(held))
    return next((start for start in tails if MAGIC.startswith(held[start:])), len(held))
