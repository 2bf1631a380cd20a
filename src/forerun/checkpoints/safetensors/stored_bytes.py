"""Read the bytes of stored tensors, without torch."""

from io import FileIO
from typing import TYPE_CHECKING

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor


def read_bytes(tensor: StoredTensor) -> bytearray:
    """All bytes of a tensor.

    Raises:
        CheckpointError: the file cannot be read, or has become shorter.
    """
    raw = bytearray(tensor.num_bytes)
    try:
        with FileIO(tensor.path) as file:
            fill(file, memoryview(raw), tensor, 0)
    except OSError as error:
        raise unreadable(tensor, error) from error
    return raw


def read_ids(tensor: StoredTensor) -> "Tensor":
    """Stored whole numbers, as int64.

    Args:
        tensor: of one of the dtypes in `WHOLE_BYTES`, with at least one element.
    """
    import torch

    return torch.frombuffer(read_bytes(tensor), dtype={"I32": torch.int32, "I64": torch.int64}[tensor.dtype]).long()


def fill(file: FileIO, rest: memoryview, tensor: StoredTensor, start: int) -> None:
    """Fill `rest` with a tensor's bytes from its byte `start`.

    Raises:
        CheckpointError: the file has become shorter.
    """
    file.seek(tensor.offset + start)
    while rest:
        num_bytes = file.readinto(rest)
        if not num_bytes:
            raise CheckpointError(
                f"{tensor.path} ended inside tensor {tensor.name!r}: it changed while it was read, load it again"
            )
        rest = rest[num_bytes:]


def unreadable(tensor: StoredTensor, error: OSError) -> CheckpointError:
    return CheckpointError(f"{tensor.path} cannot be read ({error}): check the disk and the file")
