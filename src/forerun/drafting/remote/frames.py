"""Encodes messages as checked frames of bounded size, and decodes frames from untrusted or damaged input."""

import struct
from typing import Final
from zlib import crc32

from forerun.drafting.remote.codec import MessageError, pack, unpack
from forerun.drafting.remote.messages import Message

MAGIC: Final = b"FrRn"
VERSION: Final = 6
HEAD: Final = struct.Struct("<4sBBHIII")  # magic, version, kind, reserved, request, payload length, payload CRC
HEAD_CRC: Final = struct.Struct("<I")  # CRC of the head, so that the reader never waits because of a damaged length
HEAD_SIZE: Final = HEAD.size + HEAD_CRC.size
MAX_PAYLOAD: Final = 8 << 20  # bytes: a prompt of two million tokens
MAX_FAULTS: Final = 16  # faulty frames after which a peer is disconnected


def to_frame(message: Message) -> bytes:
    """The message as one frame, which `FrameReader` decodes."""
    kind, payload = pack(message)
    assert len(payload) <= MAX_PAYLOAD, f"a payload of {len(payload)} bytes"
    head = HEAD.pack(MAGIC, VERSION, kind, 0, message.request, len(payload), crc32(payload))
    return head + HEAD_CRC.pack(crc32(head)) + payload


class FrameReader:
    """Decodes messages from bytes that arrive in pieces of any size.

    It skips invalid bytes up to the next possible start of a frame, and counts them as a fault. So a damaged frame does
    not affect later ones. At most one frame's bytes are held.
    """

    def __init__(self) -> None:
        self._held = b""
        self._is_skipping = False
        self.num_faults = 0

    def feed(self, data: bytes) -> list[Message]:
        """The messages completed by `data`, in order."""
        held, place = self._held + data, 0
        messages: list[Message] = []
        while True:
            start = _next_start(held, place)
            if start > place:
                self.num_faults += not self._is_skipping  # once for each run of invalid bytes
                self._is_skipping = True
            place = start
            length = _payload_length(held, place)
            if length is None or place + HEAD_SIZE + length > len(held):
                break  # the rest has not arrived yet
            message = _read(held, place, length) if length >= 0 else None
            if message is None:
                self.num_faults += 1
                self._is_skipping = True
                place += 1
            else:
                self._is_skipping = False
                messages.append(message)
                place += HEAD_SIZE + length
        self._held = held[place:]
        return messages


def _next_start(held: bytes, place: int) -> int:
    """The next offset where a frame begins, or may begin once more bytes have arrived."""
    if held.startswith(MAGIC, place):
        return place
    found = held.find(MAGIC, place)
    if found >= 0:
        return found
    tails = range(max(place, len(held) - len(MAGIC) + 1), len(held))
    return next((start for start in tails if MAGIC.startswith(held[start:])), len(held))


def _payload_length(held: bytes, place: int) -> int | None:
    """The payload's length; None while the head is incomplete; -1 if the head is invalid."""
    if len(held) - place < HEAD_SIZE:
        return None
    magic, version, _, reserved, _, length, _ = HEAD.unpack_from(held, place)
    (crc,) = HEAD_CRC.unpack_from(held, place + HEAD.size)
    is_head = magic == MAGIC and version == VERSION and reserved == 0 and length <= MAX_PAYLOAD
    return length if is_head and crc == crc32(held[place : place + HEAD.size]) else -1


def _read(held: bytes, place: int, length: int) -> Message | None:
    _, _, kind, _, request, _, crc = HEAD.unpack_from(held, place)
    payload = held[place + HEAD_SIZE : place + HEAD_SIZE + length]
    if crc32(payload) != crc:
        return None
    try:
        return unpack(kind, request, payload)
    except MessageError:
        return None
