"""A folder whose linear layers are 8-bit floats with scales, as a WeightSource of plain values.

A weight [O, I] stored as F8_E4M3 comes with weight_scale_inv, or weight_scale, which has one factor for each block of
outputs and inputs, or one for the whole tensor. A value is float * factor. Scales of activations are not needed,
because activations are not rounded. Source: transformers, integrations/finegrained_fp8.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Unpack

import torch

from forerun.checkpoints.huggingface.load import check_depth, match_tensors, refuse_other_rows, traits_of
from forerun.checkpoints.huggingface.names import TensorPlace, by_weight, tensor_plan
from forerun.checkpoints.huggingface.packing import Fp8Scaling
from forerun.checkpoints.huggingface.plain_names import plain_names
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES, read_window
from forerun.checkpoints.source import Reading
from forerun.checkpoints.stored_weights import BlockScales, StoredWeights
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec

FLOAT8: Final = "F8_E4M3"
SUFFIXES: Final = ("weight_scale_inv", "weight_scale")
UNUSED: Final = ("activation_scale", "input_scale")


def open_fp8(folder: Path, spec: ModelSpec, scaling: Fp8Scaling, **reading: Unpack[Reading]) -> StoredWeights:
    """Open such a folder. Weights are multiplied by their scales when they are read.

    Raises:
        CheckpointError: the folder does not hold exactly the tensors of `spec` with their scales, or a scale is NaN or
            infinite; names file and tensor.
    """
    refuse_other_rows(folder, spec, "in 8-bit floats")
    stored = catalogue(folder)
    check_depth(folder, stored, spec)
    stored = plain_names(stored, spec, tensor_plan(spec))
    plan = tensor_plan(spec)
    needed = dict[str, TensorPlace]()
    scales = dict[str, str]()
    for name, place in plan.items():
        needed[name] = place
        if len(place.shape) == 2 and name in stored and stored[name].dtype == FLOAT8:
            needed[name] = replace(place, dtypes=(FLOAT8,))
            scales[name], extra = scale_places(name, place, stored, scaling)
            needed |= extra
    match_tensors(folder, stored, needed, spec)
    return StoredWeights(
        by_weight(plan, stored),
        traits=traits_of(spec),
        scales={name: read_scales(stored[own], plan[name].shape, scaling) for name, own in scales.items()},
        **reading,
    )


def scale_places(
    name: str, place: TensorPlace, stored: Mapping[str, StoredTensor], scaling: Fp8Scaling
) -> tuple[str, dict[str, TensorPlace]]:
    """The name of a weight's scales, and the places of all tensors that belong to the weight."""
    module = name.removesuffix("weight")
    own = next((module + suffix for suffix in SUFFIXES if module + suffix in stored), module + SUFFIXES[0])
    shape: tuple[int, ...] = (1,)
    if scaling.block is not None:
        shape = tuple(-(-size // unit) for size, unit in zip(place.shape, scaling.block, strict=True))
    single = [own] if scaling.block is None else []
    singles = [*single, *(module + suffix for suffix in UNUSED if module + suffix in stored)]
    places = {own: TensorPlace(name=place.name, shape=shape)}
    for each in singles:  # a scalar, or a vector of one element
        scalar = () if each in stored and stored[each].shape == () else (1,)
        places[each] = TensorPlace(name=place.name, shape=scalar)
    return own, places


def read_scales(tensor: StoredTensor, shape: tuple[int, ...], scaling: Fp8Scaling) -> BlockScales:
    """The scales of a weight of this shape."""
    block = scaling.block or (shape[0], shape[1])
    values_RC = torch.empty(-(-shape[0] // block[0]), -(-shape[1] // block[1]))
    for _ in read_window(replace(tensor, shape=values_RC.shape), values_RC, TORCH_DTYPES[tensor.dtype]):
        pass
    if not values_RC.isfinite().all():
        raise CheckpointError(
            f"{tensor.path}: tensor {tensor.name!r} holds NaN or infinity, but scales must be finite: fetch the file "
            "again"
        )
    return BlockScales(values_RC=values_RC, block=block)
