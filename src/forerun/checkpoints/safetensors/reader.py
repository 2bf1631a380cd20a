"""Read stored tensors, or windows of them, into tensors of any dtype and device.

Legend: R rows, C columns.
"""

from collections.abc import Iterator
from io import FileIO
from typing import Final

import torch
from torch import Tensor

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.stored_bytes import fill, unreadable

CHUNK_BYTES: Final = 16 * 2**20
TORCH_DTYPES: Final = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
}  # fmt: skip
WHOLE_DTYPES: Final = {"I32": torch.int32, "I64": torch.int64}


def read_window(
    tensor: StoredTensor, target_RC: Tensor, dtype: torch.dtype, *, row: int = 0, column: int = 0
) -> Iterator[int]:
    """Read the rows and columns of a stored tensor that fill a target, in chunks, converting dtype and device.

    The rows of a stored tensor are its first dimension, and its columns all others.

    Args:
        dtype: of the stored tensor; uint8 for codes, whose columns are bytes.
        row, column: the first row and column to read.

    Yields:
        The bytes of each chunk, once it is in place.

    Raises:
        CheckpointError: the file cannot be read, or has become shorter.
    """
    num_rows, num_columns = target_RC.shape
    if target_RC.numel() == 0:
        return
    row_bytes = tensor.num_bytes // tensor.shape[0]
    wanted_bytes = num_columns * dtype.itemsize
    at_once = max(1, min(num_rows, CHUNK_BYTES // wanted_bytes))
    buffer = bytearray(at_once * wanted_bytes)
    try:
        with FileIO(tensor.path) as file:
            for first in range(0, num_rows, at_once):
                count = min(at_once, num_rows - first)
                start = (row + first) * row_bytes + column * dtype.itemsize
                if wanted_bytes == row_bytes:
                    fill(file, memoryview(buffer)[: count * wanted_bytes], tensor, start)
                else:
                    for idx in range(count):
                        rest = memoryview(buffer)[idx * wanted_bytes : (idx + 1) * wanted_bytes]
                        fill(file, rest, tensor, start + idx * row_bytes)
                chunk_RC = torch.frombuffer(buffer, dtype=dtype, count=count * num_columns).view(count, num_columns)
                target_RC[first : first + count].copy_(chunk_RC)
                yield count * wanted_bytes
    except OSError as error:
        raise unreadable(tensor, error) from error
