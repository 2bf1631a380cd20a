"""Types of quantised blocks in GGUF files, with their sizes. Source: ggml-common.h of llama.cpp."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

BlockType = Literal[
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4",
]  # fmt: skip


class BlockShape(NamedTuple):
    """Number of elements of a block, and its size in bytes."""

    num_elements: int
    num_bytes: int


BLOCKS: Final[Mapping[BlockType, BlockShape]] = {
    "Q4_0": BlockShape(32, 18),
    "Q4_1": BlockShape(32, 20),
    "Q5_0": BlockShape(32, 22),
    "Q5_1": BlockShape(32, 24),
    "Q8_0": BlockShape(32, 34),
    "Q4_K": BlockShape(256, 144),
    "Q5_K": BlockShape(256, 176),
    "Q6_K": BlockShape(256, 210),
    "Q2_K": BlockShape(256, 84),
    "Q3_K": BlockShape(256, 110),
    "IQ4_NL": BlockShape(32, 18),
    "IQ4_XS": BlockShape(256, 136),
    "MXFP4": BlockShape(32, 17),
}
