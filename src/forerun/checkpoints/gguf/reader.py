"""The bytes of a stored tensor."""

from io import FileIO

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError


def read_bytes(tensor: StoredTensor) -> bytearray:
    """All bytes of a tensor.

    Raises:
        CheckpointError: the file cannot be read, or has become shorter.
    """
    raw = bytearray(tensor.num_bytes)
    rest = memoryview(raw)
    try:
        with FileIO(tensor.path) as file:
            file.seek(tensor.offset)
            while rest:
                num_bytes = file.readinto(rest)
                if not num_bytes:
                    raise CheckpointError(
                        f"{tensor.path} ended inside tensor {tensor.name!r}: it changed while it was read, load it "
                        "again"
                    )
                rest = rest[num_bytes:]
    except OSError as error:
        raise CheckpointError(f"{tensor.path} cannot be read ({error}): check the disk and the file") from error
    return raw
