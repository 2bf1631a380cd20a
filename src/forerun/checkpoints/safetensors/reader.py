"""The bytes of stored tensors, copied into tensors of any dtype and device."""

from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError

CHUNK_BYTES: Final = 16 * 2**20
TORCH_DTYPES: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
WHOLE_DTYPES: Final = {"I32": torch.int32, "I64": torch.int64}


def read_into(tensors: Sequence[StoredTensor], targets: Sequence[Tensor]) -> Iterator[int]:
    """Read each stored tensor into the target beside it, in chunks, converting dtype and device.

    Args:
        tensors: in file order.
        targets: contiguous, of the same number of elements each.

    Yields:
        The size of each chunk in bytes, once it is in place.
    """
    buffer = bytearray(CHUNK_BYTES)
    for path, pairs in groupby(zip(tensors, targets, strict=True), key=lambda pair: pair[0].path):
        try:
            with FileIO(path) as file:
                for tensor, target in pairs:
                    file.seek(tensor.offset)
                    yield from _read_tensor(file, tensor, target.view(-1), buffer)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error}): check the disk and the file") from error


def _read_tensor(file: FileIO, tensor: StoredTensor, target_N: Tensor, buffer: bytearray) -> Iterator[int]:
    dtype = (TORCH_DTYPES | WHOLE_DTYPES)[tensor.dtype]
    item_bytes, done = dtype.itemsize, 0
    while done < tensor.num_bytes:
        num_bytes = min(len(buffer), tensor.num_bytes - done)
        _fill(file, memoryview(buffer)[:num_bytes], tensor)
        source_N = torch.frombuffer(buffer, dtype=dtype, count=num_bytes // item_bytes)
        target_N[done // item_bytes : (done + num_bytes) // item_bytes].copy_(source_N)
        done += num_bytes
        yield num_bytes


def _fill(file: FileIO, view: memoryview, tensor: StoredTensor) -> None:
    while view:
        num_bytes = file.readinto(view)
        if not num_bytes:
            raise CheckpointError(
                f"{tensor.path} ended inside tensor {tensor.name!r}: it changed while it was read, load it again"
            )
        view = view[num_bytes:]
