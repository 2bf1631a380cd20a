"""Parts of weights in every format hold the values of the whole to the bit, and padding that is zero."""

import random

import pytest
import torch
from torch import Tensor

from forerun.model.gguf_block_types import BLOCKS
from forerun.model.quantise import dequantise, quantise
from forerun.model.slicing import take, take_columns, take_rows
from forerun.model.weights import BlockWeight, DenseWeight, Piece, Weight
from tests.blocks import random_blocks

FORMATS = ("plain", "int8", "int4", "Q4_0", "Q4_1", "Q6_K")
NUM_OUT = 24
NUM_IN = 768


def weight_in(name: str) -> Weight:
    if name in ("plain", "int8", "int4"):
        weight_OI = torch.randn(NUM_OUT, NUM_IN, generator=torch.Generator().manual_seed(1))
        return quantise(weight_OI, name)  # type: ignore[arg-type]
    block_type = name
    num_blocks = NUM_IN // BLOCKS[block_type].num_elements  # type: ignore[index]
    blocks_OB = random_blocks(block_type, num_out=NUM_OUT, blocks_in_row=num_blocks)  # type: ignore[arg-type]
    return BlockWeight(blocks_OB=blocks_OB, block_type=block_type)  # type: ignore[arg-type]


def equal(part: Weight, expected: Tensor) -> bool:
    return torch.equal(dequantise(part), expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(4))
def test_columns(name: str, seed: int) -> None:
    rng = random.Random(seed)
    step = rng.choice([1, 8, 32, 256])
    start = rng.randrange(0, NUM_IN, step)
    stop = rng.randrange(start, NUM_IN + 1, step)
    piece = Piece(start=start, stop=stop, padding=step * rng.randint(int(start == stop), 2))
    weight = weight_in(name)
    assert equal(take_columns(weight, piece), take(dequantise(weight), [piece], 1))


@pytest.mark.parametrize("name", FORMATS)
def test_rows(name: str) -> None:
    weight = weight_in(name)
    pieces = [Piece(start=3, stop=9), Piece(start=0, stop=0, padding=2), Piece(start=20, stop=24, padding=1)]
    assert equal(take_rows(weight, [pieces]), take(dequantise(weight), pieces))


def test_a_part_keeps_nothing_of_the_whole() -> None:
    weight = weight_in("plain")
    assert isinstance(weight, DenseWeight)
    part = take_rows(weight, [[Piece(start=8, stop=16)]])
    assert isinstance(part, DenseWeight)
    assert part.values_OI.untyped_storage().nbytes() == 8 * NUM_IN * 4
