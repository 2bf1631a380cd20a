"""Frames tampered with, by noise or by somebody who can compute a CRC."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from msgspec import msgpack
from msgspec.structs import replace

from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import Proposal
from forerun.wires.frames import HEAD, HEAD_CRC, HEAD_SIZE, MAGIC, MAX_PAYLOAD, VERSION

REQUEST: Final = 3  # the one at work: there were requests before it
LONGEST_LIE: Final = 1 << 12  # bytes that a reader is told to wait for
NUMBERS: Final = (0, 1, 2, 3, 5, 127, 128, 255, 1023, 1024, 1025, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
REALS: Final = (0.0, -0.0, 1.0, -1.0, -0.5, 1e-300, 1e30, -1e30, float("inf"), float("-inf"), float("nan"))
NOISE_SHARE: Final = 0.6


@dataclass(slots=True, kw_only=True)
class Material:
    """What mutants are made of.

    Args:
        frames: honest ones.
        sample: an honest proposal.
        text: the target's, as far as it has come.
        confirmed_len: tokens of it from which on a proposal is of interest.
    """

    frames: list[bytes]
    sample: Proposal
    text: list[int]
    confirmed_len: int


Mutate = Callable[[random.Random, bytes, Material], bytes]


def random_mutant(rng: random.Random, material: Material) -> tuple[str, bytes]:
    """The name of the mutation and the mutant."""
    mutate = rng.choice(NOISE if rng.random() < NOISE_SHARE else FORGERIES)
    return mutate.__name__, mutate(rng, rng.choice(material.frames), material)


# What noise does: the CRCs stay as they were.


def flip_bit(rng: random.Random, frame: bytes, _: Material) -> bytes:
    place = rng.randrange(len(frame))
    return frame[:place] + bytes((frame[place] ^ 1 << rng.randrange(8),)) + frame[place + 1 :]


def change_bytes(rng: random.Random, frame: bytes, _: Material) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(frame))] = rng.randrange(256)
    return bytes(changed)


def truncate(rng: random.Random, frame: bytes, _: Material) -> bytes:
    return frame[: rng.randrange(len(frame))]


def repeat_part(rng: random.Random, frame: bytes, _: Material) -> bytes:
    start, end = sorted((rng.randrange(len(frame) + 1), rng.randrange(len(frame) + 1)))
    return frame[:end] + frame[start:]


def splice(rng: random.Random, frame: bytes, material: Material) -> bytes:
    other = rng.choice(material.frames)
    return frame[: rng.randrange(len(frame))] + other[rng.randrange(len(other)) :]


def lie_about_length(rng: random.Random, frame: bytes, _: Material) -> bytes:
    return frame[:8] + struct.pack("<I", rng.choice(NUMBERS)) + frame[12:]


# What an enemy does: whatever is changed, the CRCs are right.


def sealed(kind: int, payload: bytes) -> bytes:
    head = HEAD.pack(MAGIC, VERSION, kind, 0, len(payload), crc32(payload))
    return head + HEAD_CRC.pack(crc32(head)) + payload


def fields_of(frame: bytes) -> list[Any]:
    """The message's fields, of which the first is the request."""
    fields: list[Any] = msgpack.decode(frame[HEAD_SIZE:], strict=False)
    return [REQUEST, *fields[1:]]


def changed(rng: random.Random, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with one thing changed, anywhere in it."""
    if isinstance(value, list) and value:
        place = rng.randrange(len(value))
        return [*value[:place], changed(rng, value[place], change), *value[place + 1 :]]
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return value | {key: changed(rng, value[key], change)}
    return change(value)


def forge_head(rng: random.Random, frame: bytes, _: Material) -> bytes:
    fields = fields_of(frame)
    if rng.random() < 0.5:
        fields[0] = rng.choice(NUMBERS)
    kind = frame[5] if rng.random() < 0.5 else rng.randrange(12)
    return sealed(kind, msgpack.encode(fields))


def forge_length(rng: random.Random, frame: bytes, _: Material) -> bytes:
    length = rng.randrange(LONGEST_LIE) if rng.random() < 0.9 else rng.randint(MAX_PAYLOAD + 1, 0xFFFFFFFF)
    head = frame[:8] + struct.pack("<I", length) + frame[12 : HEAD.size]
    return head + HEAD_CRC.pack(crc32(head)) + frame[HEAD_SIZE:]


def forge_bytes(rng: random.Random, frame: bytes, material: Material) -> bytes:
    return sealed(frame[5], change_bytes(rng, frame[HEAD_SIZE:], material))


def forge_number(rng: random.Random, frame: bytes, _: Material) -> bytes:
    number = rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(16)
    return sealed(frame[5], msgpack.encode(changed(rng, fields_of(frame), lambda _: number)))


def forge_real(rng: random.Random, frame: bytes, _: Material) -> bytes:
    real = rng.choice(REALS)
    return sealed(frame[5], msgpack.encode(changed(rng, fields_of(frame), lambda _: real)))


def forge_type(rng: random.Random, frame: bytes, _: Material) -> bytes:
    other = rng.choice((None, True, -1, 1 << 63, "", "x", b"", b"x" * 40, [], [[]] * 3, {}, {"x": 1}))
    return sealed(frame[5], msgpack.encode(changed(rng, fields_of(frame), lambda _: other)))


def forge_size(rng: random.Random, frame: bytes, _: Material) -> bytes:
    """Bytes or fields too many or too few, or a list or text of another length."""
    payload = frame[HEAD_SIZE:]
    fields = fields_of(frame)
    number = rng.randint(1, 4)
    match rng.randrange(4):
        case 0:
            return sealed(frame[5], payload + rng.randbytes(number) if rng.random() < 0.5 else payload[:-number])
        case 1:
            return sealed(
                frame[5], msgpack.encode([*fields, rng.choice(NUMBERS)] if rng.random() < 0.5 else fields[:-1])
            )
        case 2:
            place = rng.randrange(len(fields))
            several = fields[place]
            if isinstance(several, list | bytes | str):
                fields[place] = several[number:] if rng.random() < 0.5 else several * number
            return sealed(frame[5], msgpack.encode(fields))
        case _:  # an array that says that it is as long as can be
            return sealed(frame[5], payload[:1] + b"\xdd\xff\xff\xff\xff" + payload[1:])


def forge_proposal(rng: random.Random, _: bytes, material: Material) -> bytes:
    """A tree that nobody grew, for a place of the text where one may be expected, and with some of that text in it."""
    num_nodes = rng.randint(1, 12)
    text = material.text
    base_len = rng.randint(material.confirmed_len, len(text))
    token_ids = [rng.randrange(4) if rng.random() < 0.95 else rng.choice(NUMBERS) for _ in range(num_nodes)]
    known = text[base_len - 1 :][: rng.randint(1, num_nodes)]
    token_ids[: len(known)] = known
    parents = [node - 1 if rng.random() < 0.5 else rng.randrange(node) for node in range(1, num_nodes)]
    log_probs = [-4.0 * rng.random() for _ in range(num_nodes)]
    if rng.random() < 0.8:  # as it has to be: no child is likelier than its parent
        log_probs.sort(reverse=True)
    forged = replace(
        material.sample, base_len=base_len, serial=rng.choice(NUMBERS), token_ids=tuple(token_ids),
        parents=(0, *parents), log_probs=tuple(log_probs),
    )  # fmt: skip
    return KINDS.to_frame(forged)


NOISE: Final[tuple[Mutate, ...]] = (flip_bit, change_bytes, truncate, repeat_part, splice, lie_about_length)
FORGERIES: Final[tuple[Mutate, ...]] = (
    forge_head, forge_length, forge_bytes, forge_number, forge_real, forge_type, forge_size, forge_proposal,
)  # fmt: skip
