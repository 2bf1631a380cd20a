"""The encoding of a leader's messages to its followers.

A message is the length of its body, then the body: 32-bit numbers, the first of which is the kind, then a bit mask if
there is one. A list of numbers is preceded by its length. An empty body is a liveness check, which is answered. Both
ends must have the same version, which the leader sends first.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forerun.core.sublayers import ATTENTION, MLP
from forerun.model.inputs import ForwardInput, TokenChoice
from forerun.model.step import CacheMove, TextMove, Told

HEADER: Final = struct.Struct("<I")  # number of bytes in the body
CHOICE: Final = struct.Struct("<iQd")  # whether there is noise, its seed, and the temperature
READY: Final = b"ready"  # a follower sends it once its part is loaded
GO: Final = b"go"  # the leader sends it once all are ready
GAVE_UP: Final = b"lost another"  # a follower's last message if it ends because another rank was lost
QUESTION: Final = HEADER.pack(0)  # liveness check of a rank of another host
ANSWER: Final = b"."
MOVE, PASS, TEXT = range(3)
TEXT_KINDS: Final = ("find", "save", "restore", "forget")
SUBLAYERS: Final = (ATTENTION, MLP)
NOT_GIVEN: Final = -1  # stands for a missing number of columns or bytes

Bits = NDArray[np.bool_]


def to_message(told: Told) -> bytes:
    """Encode a message."""
    match told:
        case CacheMove():
            numbers = [MOVE, told.length, told.num_committed, told.num_adopted, *counted(told.rows)]
            return framed(numbers)
        case TextMove():
            owner = None if told.owner is None else told.owner.encode("utf-8", "surrogatepass")
            kind, num_bytes = TEXT_KINDS.index(told.kind), NOT_GIVEN if owner is None else len(owner)
            return framed([TEXT, kind, told.start, num_bytes, *counted(told.token_ids)], owner or b"")
        case ForwardInput():
            return pass_message(told)


def pass_message(inputs: ForwardInput) -> bytes:
    skipped = [number for layer, kind in sorted(inputs.skipped) for number in (layer, SUBLAYERS.index(kind))]
    numbers = [PASS, inputs.first_slot, inputs.prefix_len, inputs.num_logit_rows]
    for several in (inputs.token_ids, inputs.positions, inputs.taps, skipped):
        numbers += counted(several)
    masks = (inputs.ancestry, inputs.row_skips)
    numbers += [NOT_GIVEN if mask is None else mask.shape[1] for mask in masks]
    numbers += choice_numbers(inputs.choice)
    return framed(numbers, b"".join(np.packbits(mask).tobytes() for mask in masks if mask is not None))


def choice_numbers(choice: TokenChoice | None) -> list[int]:
    if choice is None:
        return counted(())
    bits = CHOICE.pack(choice.seed is not None, choice.seed or 0, choice.temperature)
    return counted(array("i", bits))


def read_choice(numbers: Iterator[int]) -> TokenChoice | None:
    values = several(numbers)
    if not values:
        return None
    has_noise, seed, temperature = CHOICE.unpack(array("i", values).tobytes())
    return TokenChoice(seed=seed if has_noise else None, temperature=temperature)


def counted(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *numbers]


def framed(numbers: Iterable[int], rest: bytes = b"") -> bytes:
    values = array("i", numbers)
    body = HEADER.pack(len(values)) + values.tobytes() + rest
    return HEADER.pack(len(body)) + body


def read_message(body: bytes) -> Told:
    """Decode a message's body."""
    (num_values,) = HEADER.unpack_from(body)
    end = HEADER.size + num_values * array("i").itemsize
    values = array("i")
    values.frombytes(body[HEADER.size : end])
    numbers, rest = iter(values), body[end:]
    match next(numbers):
        case kind if kind == MOVE:
            length, num_committed, num_adopted = next(numbers), next(numbers), next(numbers)
            return CacheMove(
                length=length, num_committed=num_committed, num_adopted=num_adopted, rows=tuple(several(numbers))
            )
        case kind if kind == PASS:
            return read_pass(numbers, rest)
        case _:
            kind, start, num_bytes = next(numbers), next(numbers), next(numbers)
            owner = None if num_bytes == NOT_GIVEN else rest.decode("utf-8", "surrogatepass")
            return TextMove(kind=TEXT_KINDS[kind], start=start, owner=owner, token_ids=several(numbers))


def read_pass(numbers: Iterator[int], rest: bytes) -> ForwardInput:
    first_slot, prefix_len, num_logit_rows = next(numbers), next(numbers), next(numbers)
    token_ids, positions, taps, skipped = (several(numbers) for _ in range(4))
    widths = next(numbers), next(numbers)
    choice = read_choice(numbers)
    masks: list[Bits | None] = []
    for num_columns in widths:
        mask, rest = (None, rest) if num_columns == NOT_GIVEN else read_bits(rest, len(token_ids), num_columns)
        masks.append(mask)
    return ForwardInput(
        token_ids=token_ids,
        positions=positions,
        first_slot=first_slot,
        prefix_len=prefix_len,
        ancestry=masks[0],
        num_logit_rows=num_logit_rows,
        skipped=frozenset((layer, SUBLAYERS[kind]) for layer, kind in zip(skipped[::2], skipped[1::2], strict=True)),
        row_skips=masks[1],
        taps=tuple(taps),
        choice=choice,
    )


def several(numbers: Iterator[int]) -> list[int]:
    return [next(numbers) for _ in range(next(numbers))]


def read_bits(rest: bytes, num_rows: int, num_columns: int) -> tuple[Bits, bytes]:
    """A mask, and the bytes after it."""
    num_bits = num_rows * num_columns
    num_bytes = -(-num_bits // 8)
    bits = np.unpackbits(np.frombuffer(rest[:num_bytes], np.uint8), count=num_bits)
    return bits.astype(np.bool_).reshape(num_rows, num_columns), rest[num_bytes:]
