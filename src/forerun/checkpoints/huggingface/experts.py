"""A folder of a model with experts, as gpt-oss stores them, as a WeightSource.

One tensor holds a weight of all experts of a layer, with alternating rows of gate and up: plain as `gate_up_proj`
[E, H, 2I] and `down_proj` [E, I, H], or in MXFP4 as `_blocks` [E, 2I, H / 32, 16] and `_scales` [E, 2I, H / 32]. MXFP4
has 32 values of 4 bits to a scale 2^(e - 127), as GGUF's blocks of this type; but adjacent values are in the nibbles of
a byte, the first in the low one, while GGUF has values j and j + 16 there. Source: transformers, integrations/mxfp4;
llama.cpp, ggml-quants.c.

Legend: E experts, H hidden size, I features of an expert, O outputs of a weight, G groups of 32 inputs, B bytes.
"""

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Final, Unpack

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.load import check_depth, match_tensors, traits_of
from forerun.checkpoints.huggingface.names import TensorPlace, by_weight, tensor_plan
from forerun.checkpoints.huggingface.plain_names import plain_names
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES
from forerun.checkpoints.source import Reading
from forerun.checkpoints.stored_weights import BytesCounter, StoredWeights
from forerun.checkpoints.typed_weights import in_format
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec
from forerun.model.slicing import take_bias, take_part
from forerun.model.weights import WHOLE, BlockWeight, DenseWeight, Part, Table, Weight

EXPERT: Final = re.compile(r"layers\.(?P<layer>\d+)\.experts\.(?P<expert>\d+)\.(?P<weight>gate_up|out)")  # our names
EXPERTS: Final = ".mlp.experts."
STORED: Final = {"gate_up": "gate_up_proj", "out": "down_proj"}
GROUP = 32
GROUP_BYTES = 16
NAN: Final = 255  # of a scale
CODES: Final = ("U8",)


class ExpertWeights:
    """A WeightSource of such a folder. All tensors are checked before the first is read; experts are read one by one.

    Raises:
        CheckpointError: the folder does not hold exactly the tensors of `spec`; names file and tensor.
    """

    def __init__(self, folder: Path, spec: ModelSpec, **reading: Unpack[Reading]) -> None:
        stored = catalogue(folder)
        check_depth(folder, stored, spec)
        plan = {name: place for name, place in tensor_plan(spec).items() if EXPERTS not in name}
        self._stored = plain_names(stored, spec, plan)
        needed = {**plan, **dict(expert_places(spec, self._stored))}
        match_tensors(folder, self._stored, needed, spec)
        self._dtype = reading["dtype"]
        self._format = reading.get("weight_format", "plain")
        self._device = reading.get("device", "cpu")
        self._counter = BytesCounter((self._stored[name] for name in needed), reading.get("on_progress"))
        self._plain = StoredWeights(
            by_weight(plan, self._stored),
            dtype=self._dtype,
            weight_format=self._format,
            device=self._device,
            counter=self._counter,
            traits=traits_of(spec),
        )

    def table(self) -> Table:
        return self._plain.table()

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        match = EXPERT.fullmatch(name)
        if match is None:
            return self._plain.linear(name, part)
        stored = f"model.layers.{match['layer']}{EXPERTS}{STORED[match['weight']]}"
        expert = int(match["expert"])
        is_mixed = match["weight"] == "gate_up"
        weight = in_format(self._weight(stored, expert, is_mixed=is_mixed), self._format)
        bias_O = in_order(self._read(f"{stored}_bias", expert), is_mixed=is_mixed).to(self._device)
        return take_part(weight, part), take_bias(bias_O, part)

    def vector(self, name: str) -> Tensor:
        return self._plain.vector(name)

    def _weight(self, stored: str, expert: int, *, is_mixed: bool) -> Weight:
        if stored in self._stored:
            values_OI = in_order(self._read(stored, expert).t(), is_mixed=is_mixed).contiguous()
            return DenseWeight(values_OI=values_OI.to(self._device))
        scales_OG = self._read(f"{stored}_scales", expert)
        if (scales_OG == NAN).any():
            tensor = self._stored[f"{stored}_scales"]
            raise CheckpointError(
                f"{tensor.path}: tensor {tensor.name!r} holds a scale that is NaN: fetch the file again"
            )
        blocks_OB = gguf_blocks(self._read(f"{stored}_blocks", expert), scales_OG)
        blocks_OB = in_order(blocks_OB, is_mixed=is_mixed).to(self._device)
        return BlockWeight(blocks_OB=blocks_OB, block_type="MXFP4", dtype=self._dtype)

    def _read(self, name: str, expert: int) -> Tensor:
        """One expert's part of a tensor, on the CPU: codes as they are, other values in the model's dtype."""
        tensor = self._stored[name]
        dtype = TORCH_DTYPES.get(tensor.dtype, torch.uint8)
        shape = tensor.shape[1:]
        read = torch.empty(1, prod(shape), dtype=torch.uint8 if tensor.dtype in CODES else self._dtype)
        self._counter.read(tensor, read, dtype, row=expert)
        return read.view(shape)


def expert_places(spec: ModelSpec, stored: Mapping[str, StoredTensor]) -> Iterator[tuple[str, TensorPlace]]:
    """The tensors of all experts that a folder must hold: for each weight the plain one, or its codes and scales."""
    experts = spec.num_experts
    hidden = spec.hidden_size
    inner = spec.intermediate_size
    for layer in range(spec.num_layers):
        for weight, num_out, num_in in (("gate_up", 2 * inner, hidden), ("out", hidden, inner)):
            own = f"layers.{layer}.experts.{weight}"
            name = f"model.layers.{layer}{EXPERTS}{STORED[weight]}"
            yield f"{name}_bias", TensorPlace(name=own, shape=(experts, num_out))
            if f"{name}_blocks" in stored:
                groups = (experts, num_out, num_in // GROUP)
                yield f"{name}_blocks", TensorPlace(name=own, shape=(*groups, GROUP_BYTES), dtypes=CODES)
                yield f"{name}_scales", TensorPlace(name=own, shape=groups, dtypes=CODES)
            else:
                yield name, TensorPlace(name=own, shape=(experts, num_in, num_out))


def in_order(rows: Tensor, *, is_mixed: bool) -> Tensor:
    """Reorder alternating rows of gate and up to all rows of gate before all rows of up."""
    return torch.cat((rows[::2], rows[1::2])) if is_mixed else rows


def gguf_blocks(codes_OGB: Tensor, scales_OG: Tensor) -> Tensor:
    """The same values as blocks of GGUF's type MXFP4, uint8 [O, 17 G]."""
    values = torch.stack((codes_OGB & 15, codes_OGB >> 4), -1).flatten(2)
    halves = values[:, :, :GROUP_BYTES] | values[:, :, GROUP_BYTES:] << 4
    return torch.cat((scales_OG[:, :, None], halves), 2).flatten(1)
