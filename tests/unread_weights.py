"""Models of any size opened on the device "meta": as from files, but for the bytes, which are not read."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from forerun.backends.backend import Backend
from forerun.checkpoints.huggingface.names import by_weight, tensor_plan
from forerun.checkpoints.safetensors.header import ITEM_BYTES, StoredTensor
from forerun.checkpoints.stored_weights import BytesCounter, StoredWeights
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.gguf_block_types import BLOCKS
from forerun.model.runner import Runner

DTYPE: Final = torch.bfloat16
NO_FILE: Final = Path("not there")


class Unread(BytesCounter):
    """Reads nothing: on "meta" there is no memory to read into."""

    def read(self, *_: Any, **__: Any) -> None:
        pass


def open_unread(
    spec: ModelSpec,
    weight_format: WeightFormat,
    *,
    backend: Backend,
    capacity: int = 256,
    stored_as: Mapping[str, str] | None = None,
) -> Runner:
    """A runner on "meta", with weights of a folder of bfloat16.

    Args:
        stored_as: what other tensors are stored as, by their names in the folder.
    """
    plan = tensor_plan(spec)
    stored = {
        name: stored_tensor(name, place.shape, (stored_as or {}).get(name, "BF16")) for name, place in plan.items()
    }
    weights = StoredWeights(
        by_weight(plan, stored),
        counter=Unread(stored.values(), None),
        dtype=DTYPE,
        weight_format=weight_format,
        device="meta",
    )
    return Runner(spec, weights, backend=backend, capacity=capacity, dtype=DTYPE, device="meta")


def stored_tensor(name: str, shape: tuple[int, ...], dtype: str) -> StoredTensor:
    block = {kind: (1, num_bytes) for kind, num_bytes in ITEM_BYTES.items()} | dict(BLOCKS)
    num_elements, num_bytes = block[dtype]
    num_bytes *= prod(shape) // num_elements
    return StoredTensor(path=NO_FILE, name=name, dtype=dtype, shape=shape, offset=0, num_bytes=num_bytes)
