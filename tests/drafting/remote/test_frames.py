"""Messages come out of bytes as they went in, however these are cut; a fault costs the frame it is in."""

import random
from collections.abc import Callable
from typing import Final
from zlib import crc32

import pytest

from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import Beat, Message
from forerun.wires.frames import HEAD, HEAD_CRC, HEAD_SIZE, MAGIC, MAX_PAYLOAD, VERSION, FrameReader
from tests.drafting.remote.mutants import sealed
from tests.drafting.remote.samples import BEGIN, HELLO, MESSAGES, PROPOSAL, SETUP, SPANS, VERDICT, random_proposal


def pieces(rng: random.Random, data: bytes, longest: int) -> list[bytes]:
    """The data, cut anywhere."""
    cut = []
    place = 0
    while place < len(data):
        end = place + rng.randint(1, longest)
        cut.append(data[place:end])
        place = end
    return cut


def read_all(data: list[bytes]) -> tuple[list[Message], int]:
    """What a reader makes of pieces: the messages, and the faults it counts."""
    reader = FrameReader(KINDS)
    return [message for piece in data for message in reader.feed(piece)], reader.num_faults


@pytest.mark.parametrize("longest", [1, 7, 60, 10_000])
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(longest: int) -> None:
    rng = random.Random(longest)
    for _ in range(20):
        messages = rng.sample([*MESSAGES, random_proposal(rng)], k=8)
        data = b"".join(map(KINDS.to_frame, messages))
        assert read_all(pieces(rng, data, longest)) == (messages, 0)


def test_a_garbled_bit_costs_the_frame_it_is_in_and_nothing_waits_for_a_garbled_length() -> None:
    after = [VERDICT, Beat(request=1)]
    successors = b"".join(map(KINDS.to_frame, after))
    for message in MESSAGES[2:]:
        frame = KINDS.to_frame(message)
        for bit in range(8 * len(frame)):
            garbled = bytearray(frame)
            garbled[bit // 8] ^= 1 << bit % 8
            assert read_all([bytes(garbled) + successors]) == (after, 1), f"bit {bit} of {message}"


LOSSES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "its first byte": lambda frame: frame[1:],
    "its head": lambda frame: frame[HEAD_SIZE:],
    "its payload": lambda frame: frame[:HEAD_SIZE],
    "its last byte": lambda frame: frame[:-1],
    "a byte in the middle": lambda frame: frame[: len(frame) // 2] + frame[len(frame) // 2 + 1 :],
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_frame_that_lost_bytes_is_missed_and_what_follows_is_read_once_its_length_has_come(name: str) -> None:
    for message in (HELLO, SETUP, BEGIN, VERDICT, PROPOSAL, SPANS):
        lossy = LOSSES[name](KINDS.to_frame(message))
        after = [Beat(request=number) for number in range(20)]
        data = [lossy, *(KINDS.to_frame(beat) for beat in after)]
        assert read_all(data) == (after, 1)


def head_of(*, version: int = VERSION, length: int = 0) -> bytes:
    """The head of a stop, with its CRC, whatever it claims."""
    head = HEAD.pack(MAGIC, version, 5, 0, length, 0)
    return head + HEAD_CRC.pack(crc32(head))


def test_a_frame_of_the_next_version_is_skipped() -> None:
    assert read_all([head_of(version=VERSION + 1) + KINDS.to_frame(VERDICT)]) == ([VERDICT], 1)


def num_held(reader: FrameReader[Message]) -> int:
    return len(reader._held)  # how much memory is used is no part of what a reader offers


def test_no_more_than_one_frame_is_held() -> None:
    reader = FrameReader(KINDS)
    piece = bytes(1 << 20)
    longest = sealed(9, bytes(MAX_PAYLOAD))[:HEAD_SIZE]
    for _ in range(3):
        reader.feed(longest)
        for _ in range(MAX_PAYLOAD // len(piece) + 1):
            reader.feed(piece)
            assert num_held(reader) <= HEAD_SIZE + MAX_PAYLOAD
    reader = FrameReader(KINDS)
    reader.feed(head_of(length=MAX_PAYLOAD + 1) + piece)
    assert num_held(reader) == 0
