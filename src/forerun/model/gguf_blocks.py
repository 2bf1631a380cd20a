"""Dequantises the blocks of GGUF files.

A value is scale * code + minimum, or scale * TABLE[code]. Each group of 32 inputs (16 in Q2_K, Q3_K and Q6_K) has its
own scale and minimum. The K types and IQ4_XS store them as small integers, to be multiplied by one or two float16 of
each block of 256. Source: ggml-quants.c of llama.cpp.

Legend: N blocks, E elements of a block, G groups of a block, O output features, I input features.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from forerun.model.gguf_block_types import BLOCKS, BlockType

IQ4_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_VALUES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # 4-bit floats, doubled


def dequantise_blocks(blocks_OB: Tensor, block_type: BlockType) -> Tensor:
    """The weight, float32 [O, I], rounded in the same order as ggml does.

    Args:
        blocks_OB: uint8 [O, bytes of a row].
    """
    num_elements, num_bytes = BLOCKS[block_type]
    num_out, row_bytes = blocks_OB.shape
    assert row_bytes % num_bytes == 0, (row_bytes, num_bytes)
    values_NE = VALUES[block_type](blocks_OB.reshape(-1, num_bytes))
    return values_NE.reshape(num_out, row_bytes // num_bytes * num_elements)


def values_of_q6_k(blocks: Tensor) -> Tensor:
    """A block has two halves of 128 elements. The low four bits of a half are two runs of 64 nibbles; its high two bits
    are packed four to a byte."""
    low_NG32 = halves_of_64(blocks[:, :128], width=64).reshape(len(blocks), 8, 32)
    high_NG32 = quarters(blocks[:, 128:192]).reshape(len(blocks), 8, 32)
    codes_NGE = (low_NG32 | high_NG32 << 4).float().sub_(32).reshape(len(blocks), 16, 16)
    steps_NG = floats(blocks, 208) * blocks[:, 192:208].contiguous().view(torch.int8)
    return (steps_NG[:, :, None] * codes_NGE).flatten(1)


def values_of_q2_k(blocks: Tensor) -> Tensor:
    """Each of the first sixteen bytes has the factors of a group's scale and of its minimum, which is subtracted."""
    steps_NG1 = (floats(blocks, 80) * (blocks[:, :16] & 15))[:, :, None]
    offsets_NG1 = (floats(blocks, 82) * (blocks[:, :16] >> 4))[:, :, None]
    return (steps_NG1 * quarters(blocks[:, 16:80]) - offsets_NG1).flatten(1)


def values_of_q3_k(blocks: Tensor) -> Tensor:
    """A group's factor has its low four bits in eight bytes and its high two in the four bytes after them."""
    third_NGE = eighths(blocks[:, :32]).reshape(len(blocks), 16, 16)
    codes_NGE = (quarters(blocks[:, 32:96]) | third_NGE << 2).float().sub_(4)
    low_NG = halves(blocks[:, 96:104])
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    high_NG = ((blocks[:, None, 104:108] >> shifts) & 3).flatten(1)
    steps_NG = floats(blocks, 108) * (low_NG | high_NG << 4).float().sub_(32)
    return (steps_NG[:, :, None] * codes_NGE).flatten(1)


def values_of_iq4_xs(blocks: Tensor) -> Tensor:
    """A group's factor has its high two bits in two bytes and its low four in the four bytes after them."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)
    high_NG = ((blocks[:, 2:4, None] >> shifts) & 3).flatten(1)
    low_NG = torch.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), 2).flatten(1)
    steps_NG = floats(blocks, 0) * (low_NG | high_NG << 4).float().sub_(32)
    codes_NGE = halves(blocks[:, 8:].reshape(-1, 16)).reshape(len(blocks), 8, 32)
    return (steps_NG[:, :, None] * looked_up(codes_NGE, IQ4_VALUES)).flatten(1)


def floats(blocks: Tensor, begin: int) -> Tensor:
    """The float16 at byte `begin` of each block, as float32 [N, 1]."""
    return blocks[:, begin : begin + 2].contiguous().view(torch.float16).float()


def halves(codes: Tensor) -> Tensor:
    """Split [N, B] bytes into [N, 2 B] nibbles: all low ones, then all high ones."""
    return torch.cat((codes & 15, codes >> 4), 1)


def halves_of_64(codes: Tensor, *, width: int = 32) -> Tensor:
    """Nibbles [N, G, width]: for each `width` bytes all low ones, then all high ones."""
    grouped = codes.reshape(len(codes), -1, width)
    return torch.stack((grouped & 15, grouped >> 4), 2).flatten(1, 2)


def quarters(codes: Tensor) -> Tensor:
    """Codes of two bits [N, 16, 16] from [N, 64] bytes: for each 32 bytes all lowest pairs of bits, then the others."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=codes.device)[:, None]
    return ((codes.reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(len(codes), 16, 16)


def eighths(codes: Tensor) -> Tensor:
    """Codes of one bit [N, 8, 32] from [N, 32] bytes: all lowest bits, then the others."""
    places = torch.arange(8, dtype=torch.uint8, device=codes.device)[:, None]
    return (codes[:, None] >> places) & 1


def looked_up(codes: Tensor, table: Sequence[int]) -> Tensor:
    """The table's value for each code, float32."""
    return torch.tensor(table, dtype=torch.float32, device=codes.device)[codes.int()]


def powers(exponents: Tensor) -> Tensor:
    """2^(e - 128), float32, for bytes e; for 0 and 1 they are subnormal."""
    wide = exponents.int()
    return torch.where(wide < 2, 0x00200000 << wide.clamp(max=1), (wide - 1) << 23).view(torch.float32)


def fifth_bits(bits: Tensor) -> Tensor:
    """[N, 32]: 16 for element i where bit i of the four bytes is set, else 0."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return ((bits[:, :, None] >> places) & 1).flatten(1) << 4


def scaled(blocks: Tensor, codes_NGE: Tensor) -> Tensor:
    """Values of Q4_K or Q5_K codes. Twelve bytes after the two floats hold scales and minima of eight groups, six bits
    each."""
    first_N4 = blocks[:, 4:8]
    second_N4 = blocks[:, 8:12]
    third_N4 = blocks[:, 12:16]
    scales_NG = torch.cat((first_N4 & 63, third_N4 & 15 | (first_N4 >> 2) & 48), 1)
    minima_NG = torch.cat((second_N4 & 63, third_N4 >> 4 | (second_N4 >> 2) & 48), 1)
    steps_NG1 = (floats(blocks, 0) * scales_NG)[:, :, None]
    offsets_NG1 = (floats(blocks, 2) * minima_NG)[:, :, None]
    return (steps_NG1 * codes_NGE - offsets_NG1).flatten(1)


VALUES: Final[Mapping[BlockType, Callable[[Tensor], Tensor]]] = {
    "Q4_0": lambda blocks: floats(blocks, 0) * (halves(blocks[:, 2:]).float() - 8),
    "Q4_1": lambda blocks: floats(blocks, 0) * halves(blocks[:, 4:]) + floats(blocks, 2),
    "Q5_0": lambda blocks: floats(blocks, 0) * ((halves(blocks[:, 6:]) | fifth_bits(blocks[:, 2:6])).float() - 16),
    "Q5_1": lambda blocks: floats(blocks, 0) * (halves(blocks[:, 8:]) | fifth_bits(blocks[:, 4:8])) + floats(blocks, 2),
    "Q8_0": lambda blocks: floats(blocks, 0) * blocks[:, 2:].contiguous().view(torch.int8),
    "Q4_K": lambda blocks: scaled(blocks, halves_of_64(blocks[:, 16:])),
    "Q5_K": lambda blocks: scaled(blocks, halves_of_64(blocks[:, 48:]) | eighths(blocks[:, 16:48]) << 4),
    "Q6_K": values_of_q6_k,
    "Q2_K": values_of_q2_k,
    "Q3_K": values_of_q3_k,
    "IQ4_NL": lambda blocks: floats(blocks, 0) * looked_up(halves(blocks[:, 2:]), IQ4_VALUES),
    "IQ4_XS": values_of_iq4_xs,
    "MXFP4": lambda blocks: powers(blocks[:, :1]) * looked_up(halves(blocks[:, 1:]), E2M1_VALUES),
}
