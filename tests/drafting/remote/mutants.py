"""Frames tampered with, by noise or by somebody who can compute a CRC."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final
from zlib import crc32

from forerun.drafting.remote.frames import HEAD, HEAD_CRC, HEAD_SIZE, MAGIC, MAX_PAYLOAD, VERSION, to_frame
from forerun.drafting.remote.messages import Proposal

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
    return frame[:12] + struct.pack("<I", rng.choice(NUMBERS)) + frame[16:]


# What an enemy does: whatever is changed, the CRCs are right.


def sealed(kind: int, request: int, payload: bytes) -> bytes:
    head = HEAD.pack(MAGIC, VERSION, kind, 0, request, len(payload), crc32(payload))
    return head + HEAD_CRC.pack(crc32(head)) + payload


def forge_head(rng: random.Random, frame: bytes, _: Material) -> bytes:
    request = REQUEST if rng.random() < 0.5 else rng.choice(NUMBERS)
    kind = frame[5] if rng.random() < 0.5 else rng.randrange(12)
    return sealed(kind, request, frame[HEAD_SIZE:])


def forge_length(rng: random.Random, frame: bytes, _: Material) -> bytes:
    length = rng.randrange(LONGEST_LIE) if rng.random() < 0.9 else rng.randint(MAX_PAYLOAD + 1, 0xFFFFFFFF)
    head = frame[:12] + struct.pack("<I", length) + frame[16 : HEAD.size]
    return head + HEAD_CRC.pack(crc32(head)) + frame[HEAD_SIZE:]


def forge_bytes(rng: random.Random, frame: bytes, material: Material) -> bytes:
    payload = frame[HEAD_SIZE:] or bytes(rng.randrange(5))
    changed = change_bytes(rng, payload, material) if payload else payload
    return sealed(frame[5], REQUEST, changed)


def forge_number(rng: random.Random, frame: bytes, _: Material) -> bytes:
    payload = frame[HEAD_SIZE:]
    number = struct.pack("<I", rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(16))
    number = number[: rng.choice((1, 2, 4, 4))]
    place = rng.randrange(len(payload) + 1)
    return sealed(frame[5], REQUEST, payload[:place] + number + payload[place + len(number) :])


def forge_real(rng: random.Random, frame: bytes, _: Material) -> bytes:
    payload = frame[HEAD_SIZE:]
    is_double = rng.random() < 0.5
    real = struct.pack("<d" if is_double else "<f", rng.choice(REALS))
    place = max(0, len(payload) - len(real) * rng.randint(1, 9))  # where a proposal has its log-probabilities
    if is_double:
        place = min(len(payload), 4 * rng.randrange(4))
    return sealed(frame[5], REQUEST, payload[:place] + real + payload[place + len(real) :])


def forge_size(rng: random.Random, frame: bytes, _: Material) -> bytes:
    payload = frame[HEAD_SIZE:]
    num_bytes = 4 * rng.randint(1, 4)
    longer, shorter = payload + rng.randbytes(num_bytes), payload[:-num_bytes]
    return sealed(frame[5], REQUEST, longer if rng.random() < 0.5 else shorter)


def forge_proposal(rng: random.Random, _: bytes, material: Material) -> bytes:
    """A tree that nobody grew, for a place of the text where one may be expected, and with some of that text in it."""
    num_nodes, text = rng.randint(1, 12), material.text
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
    return to_frame(forged)


NOISE: Final[tuple[Mutate, ...]] = (flip_bit, change_bytes, truncate, repeat_part, splice, lie_about_length)
FORGERIES: Final[tuple[Mutate, ...]] = (
    forge_head, forge_length, forge_bytes, forge_number, forge_real, forge_size, forge_proposal,
)  # fmt: skip
