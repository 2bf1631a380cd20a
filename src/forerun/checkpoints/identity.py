"""The identity of a checkpoint's model, so that files of one model are not used with another, and sums of its files."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from hashlib import blake2b, file_digest
from io import FileIO
from pathlib import Path
from typing import Any, Final

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, RopeSpec

DIGEST_BYTES: Final = 8
SAMPLE_BYTES: Final = 4096
# Fields that are always part of an identity; the others came later.
OLD: Final = frozenset({
    "family", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size",
    "max_positions", "norm_eps", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "tied_embeddings", "rope", "window",
})  # fmt: skip
OLD_ROPE: Final = frozenset({
    "theta", "kind", "factor", "low_freq_factor", "high_freq_factor", "original_max_positions", "beta_fast",
    "beta_slow", "truncate", "attention_factor",
})  # fmt: skip
PLAIN: Final = ModelSpec(
    family="",
    num_layers=1,
    hidden_size=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    intermediate_size=1,
    vocab_size=1,
    max_positions=1,
    norm_eps=1.0,
)


def identity_of(spec: ModelSpec, stored: Mapping[str, StoredTensor]) -> str:
    """A hash of 16 hexadecimal digits over an architecture, its tensors and a sample of their values.

    Only the first and the last 4 KiB of every tensor are read, which distinguishes a model from one that was trained
    further, even in only a few matrices. Paths, file names and the division into files do not matter; the dtype does.

    Raises:
        CheckpointError: a file cannot be read.
    """
    digest = blake2b(digest_size=DIGEST_BYTES)
    digest.update(json.dumps(_fields(spec), sort_keys=True).encode())
    tensors = sorted(stored.items())
    try:
        with ExitStack() as opened:
            files = {path: opened.enter_context(FileIO(path)) for path in {tensor.path for _, tensor in tensors}}
            for name, tensor in tensors:
                digest.update(json.dumps([name, tensor.dtype, tensor.shape]).encode())
                digest.update(_read_sample(files[tensor.path], tensor))
    except OSError as error:
        raise CheckpointError(f"the weights cannot be read ({error}): check disk and files") from error
    return digest.hexdigest()


def _fields(spec: ModelSpec) -> dict[str, Any]:
    """The spec's fields; newer ones only if they are not the default, to keep older identities valid."""
    values = asdict(spec)
    values["rope"] = _without_young(values["rope"], RopeSpec(), OLD_ROPE)
    return _without_young(values, PLAIN, OLD)


def _without_young(values: dict[str, Any], plain: RopeSpec | ModelSpec, old: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in old or value != getattr(plain, name)}


def _read_sample(file: FileIO, tensor: StoredTensor) -> bytes:
    """The first and the last bytes of a tensor; of a small tensor all bytes, some twice."""
    num_bytes = min(SAMPLE_BYTES, tensor.num_bytes)
    file.seek(tensor.offset)
    first = file.read(num_bytes)
    file.seek(tensor.offset + tensor.num_bytes - num_bytes)
    return first + file.read(num_bytes)


def sha256_of(path: Path) -> str:
    """The sha256 of a file's contents, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def require_sum(name: str, found: str, expected: str) -> None:
    """Raise CheckpointError if a downloaded file has another checksum than its origin states."""
    if found != expected:
        raise CheckpointError(
            f"{name} is not the file that was expected: its sha256 is {found}, but must be {expected}: fetch it again"
        )
