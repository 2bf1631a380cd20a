"""The bits that int4 and int8 weights are unpacked by: Triton's interpreter knows no inline assembly, so it is read and
carried out here, instruction by instruction.
"""

import re

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forerun.backends.gpu.passes import dequantise

Registers = dict[str, NDArray[np.uint32]]

DTYPES = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}


def as_floats(bits: NDArray[np.uint32], kind: str) -> torch.Tensor:
    """[..., 2]: the low and the high half of each register."""
    halves = torch.from_numpy(np.ascontiguousarray(bits)[..., None].view(np.int16))
    return halves.view(DTYPES[kind])


def as_bits(floats: torch.Tensor) -> NDArray[np.uint32]:
    return floats.contiguous().view(torch.int16).numpy().view(np.uint32)[..., 0]


def permute(low: NDArray[np.uint32], high: NDArray[np.uint32], selector: int) -> NDArray[np.uint32]:
    """Bytes of two registers, numbered 0 to 7, one for each digit of the selector."""
    source = (high.astype(np.uint64) << np.uint64(32)) | low
    result = np.zeros_like(low)
    for place in range(4):
        digit = selector >> 4 * place & 7
        result |= ((source >> np.uint64(8 * digit) & np.uint64(255)) << np.uint64(8 * place)).astype(np.uint32)
    return result


def run(assembly: str, inputs: Registers, like: NDArray[np.uint32]) -> Registers:
    """Registers after the instructions of a block of assembly. Rounding must never happen: sums are checked."""
    registers = dict(inputs)

    def value(name: str) -> NDArray[np.uint32]:
        return registers[name] if name in registers else np.full_like(like, int(name, 0))

    for line in re.findall(r"^([a-z][\w.]+ .*);", assembly, re.MULTILINE):
        operation, _, operands = line.partition(" ")
        target, *sources = operands.split(", ")
        match operation.split("."):
            case ["mov", _] if target == "{low":  # "mov.b32 {low, high}, zero"
                source = value(sources[1])
                registers |= {"low": source & 0xFFFF, "high": source >> 16}
                continue
            case ["mov", _] if sources[0].startswith("{"):
                low, high = (value(name.strip("{}")) for name in sources)
                result = low | high << 16
            case ["mov", _]:
                result = value(sources[0])
            case ["xor", _]:
                result = value(sources[0]) ^ value(sources[1])
            case ["and", _]:
                result = value(sources[0]) & value(sources[1])
            case ["shr", "u32"]:
                result = value(sources[0]) >> value(sources[1])
            case ["prmt", _]:
                result = permute(value(sources[0]), value(sources[1]), int(sources[2], 0))
            case ["lop3", _]:
                assert sources[3] == "0xea", "and, then or"
                result = value(sources[0]) & value(sources[1]) | value(sources[2])
            case ["fma" | "add" | "sub" as what, "rn", kind]:
                numbers = [as_floats(value(source), kind).double() for source in sources]
                match what:
                    case "fma":
                        exact = numbers[0] * numbers[1] + numbers[2]
                    case "add":
                        exact = numbers[0] + numbers[1]
                    case "sub":
                        exact = numbers[0] - numbers[1]
                assert torch.equal(exact.to(DTYPES[kind]).double(), exact)
                result = as_bits(exact.to(DTYPES[kind]))
            case _:
                raise AssertionError(f"unknown instruction {line}")
        registers[target] = result
    return registers


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize(
    ("assembly", "kind", "unit"),
    [(dequantise.INT4_TO_BFLOAT16, "bf16x2", dequantise.BFLOAT16_UNIT), (dequantise.INT4_TO_FLOAT16, "f16x2", 1.0)],
)
def test_nibbles_become_exact_numbers(assembly: object, kind: str, unit: float, half: int) -> None:
    """Each word has four nibbles in both halves; the zeros stand among those of other groups."""
    generator = np.random.default_rng(0)
    nibbles = generator.integers(0, 16, (2, 4, 2, 16))  # word, place, half, case; a case for each zero
    words = (nibbles << (4 * np.arange(4)[:, None, None] + 16 * np.arange(2)[:, None])).sum((1, 2)).astype(np.uint32)
    zeros = np.arange(16)
    others = generator.integers(0, 1 << 32, 16) & ~(15 << 16 * half)
    packed = (others | zeros << 16 * half).astype(np.uint32)
    inputs = {"$8": words[0], "$9": words[1], "$10": packed, "$11": packed}
    found = run(assembly.value[half], inputs, packed)  # type: ignore[attr-defined]
    for word, place in np.ndindex(2, 4):
        expected = torch.from_numpy((nibbles[word, place] - zeros).T.astype(np.float64)) * unit
        assert torch.equal(as_floats(found[f"${4 * word + place}"], kind).double(), expected), (word, place)


@pytest.mark.parametrize(
    ("assembly", "kind", "unit"),
    [(dequantise.INT8_TO_BFLOAT16, "bf16x2", dequantise.BFLOAT16_UNIT), (dequantise.INT8_TO_FLOAT16, "f16x2", 1.0)],
)
def test_bytes_become_exact_numbers(assembly: object, kind: str, unit: float) -> None:
    values = np.arange(-128, 128, dtype=np.int8)
    words = values.view(np.uint32)
    found = run(assembly.value, {"$2": words}, words)  # type: ignore[attr-defined]
    halves = torch.cat([as_floats(found[name], kind) for name in ("$0", "$1")], -1)
    assert torch.equal(halves.double().flatten(), torch.from_numpy(values.astype(np.float64)) * unit)
