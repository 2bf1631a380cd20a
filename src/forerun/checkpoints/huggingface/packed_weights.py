"""A WeightSource of a folder with linear layers packed in 4 bits; embedding, head and norms are plain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.load import check_depth, match_tensors, refuse_other_rows, traits_of
from forerun.checkpoints.huggingface.names import by_weight, tensor_plan
from forerun.checkpoints.huggingface.packed_layers import PackedLayer, packed_layers, stored_plan
from forerun.checkpoints.huggingface.packed_tensors import AXES, PackedWindow, check_whole, unpack
from forerun.checkpoints.huggingface.packing import Packing
from forerun.checkpoints.huggingface.plain_names import plain_names
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES, WHOLE_DTYPES
from forerun.checkpoints.source import BytesRead
from forerun.checkpoints.stored_weights import BytesCounter, Rows, StoredWeights
from forerun.checkpoints.typed_weights import in_format
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.slicing import take_grouped, take_part, take_rows
from forerun.model.weights import WHOLE, Int4Weight, Part, Piece, Table, Weight, tensors_of


class PackedWeights:
    """A WeightSource that reads each weight on request; for a part of a weight it reads little more than the part.

    Args:
        dtype: of plain tensors, and the compute dtype of kernels without 4-bit products.
        weight_format: of linear layers: "plain" and "int4" leave packed ones unchanged; other formats round them.
        on_progress: called with bytes read so far and bytes to read in all, after each chunk.

    Raises:
        CheckpointError: the folder does not hold exactly the tensors of `spec` and `packing`; names file and tensor.
    """

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        packing: Packing,
        *,
        dtype: torch.dtype,
        weight_format: WeightFormat = "plain",
        device: str = "cpu",
        on_progress: BytesRead | None = None,
    ) -> None:
        self._packing = packing
        self._dtype = dtype
        self._format = weight_format
        self._device = device
        stored = catalogue(folder)
        check_depth(folder, stored, spec)
        plan = tensor_plan(spec)
        refuse_other_rows(folder, spec, "in 4 bits")
        self._stored = plain_names(stored, spec, plan)
        layers = packed_layers(folder, plan, self._stored, packing)
        needed = stored_plan(plan, layers)
        match_tensors(folder, self._stored, needed, spec)
        plain = by_weight({name: place for name, place in plan.items() if name not in layers}, self._stored)
        self._layers: dict[str, list[PackedLayer]] = {}  # in the order of their rows
        for name, layer in layers.items():
            self._layers.setdefault(plan[name].name, []).append(layer)
        check_mixed(plain, self._layers)
        self._counter = BytesCounter((self._stored[name] for name in needed), on_progress)
        self._plain = StoredWeights(
            plain,
            counter=self._counter,
            dtype=dtype,
            weight_format=weight_format,
            device=device,
            traits=traits_of(spec),
        )

    def table(self) -> Table:
        return self._plain.table()

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        layers = self._layers.get(f"{name}.weight")
        if layers is None:
            return self._plain.linear(name, part)
        needs_whole = self._format == "int8" and part.columns is not None  # scales depend on all inputs
        weight = in_format(self._unpack_all(layers, WHOLE if needs_whole else part), self._format)
        return take_part(weight, part) if needs_whole else weight, self._plain.bias(name, part)

    def vector(self, name: str) -> Tensor:
        return self._plain.vector(name)

    def _unpack_all(self, layers: Sequence[PackedLayer], part: Part) -> Int4Weight:
        """Unpack layers with the same inputs and groups as one weight, on the device."""
        parts = []
        first = 0
        for idx, layer in enumerate(layers):
            rows = [Piece(start=0, stop=layer.shape[0])]
            if part.rows is not None:
                rows = [piece.scaled(1, -first) for piece in part.rows[idx]]
            parts.append(self._unpack(layer, rows, part.columns))
            first += layer.shape[0]
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]).to(self._device) for name in tensors_of(parts[0])
        }
        return replace(parts[0], **joined)

    def _unpack(self, layer: PackedLayer, rows: Rows, columns: Piece | None) -> Int4Weight:
        """Outputs or inputs of one layer's weight, on the CPU."""
        num_out, num_in = layer.shape
        real = [piece for piece in rows if piece.num_real] or rows[:1]
        wanted = Piece(start=min(piece.start for piece in real), stop=max(piece.stop for piece in real))
        group_size = self._packing.group_size or num_in
        window = PackedWindow.cover(layer.shape, group_size, wanted, columns or Piece(start=0, stop=num_in))
        tensors = {suffix: self._read(layer, suffix, window, group_size) for suffix in layer.tensors}
        try:
            check_whole(self._packing, tensors, layer.shape)
            weight = unpack(self._packing, tensors, window.shape, self._dtype)
        except CheckpointError as error:
            path = self._stored[f"{layer.name}.{next(iter(tensors))}"].path
            raise CheckpointError(f"{path}: tensor {layer.name}.{error}: choose another checkpoint") from None
        if rows != [Piece(start=0, stop=num_out)]:
            weight = cast(Int4Weight, take_rows(weight, [[piece.scaled(1, -window.rows.start) for piece in rows]]))
        return weight if columns is None else take_grouped(weight, columns.scaled(1, -window.columns.start))

    def _read(self, layer: PackedLayer, suffix: str, window: PackedWindow, group_size: int) -> Tensor:
        """A window of a tensor as stored, on the CPU; redundant tensors are read whole."""
        stored = self._stored[f"{layer.name}.{suffix}"]
        axes = AXES[self._packing.method].get(suffix)
        shape = stored.shape if len(stored.shape) == 2 else (stored.shape[0], 1)
        first, second = [window.along(axis, group_size) for axis in axes] if axes else map(range, shape)
        dtype = (TORCH_DTYPES | WHOLE_DTYPES)[stored.dtype]
        read = torch.empty(len(first), len(second), dtype=dtype)
        self._counter.read(stored, read, dtype, row=first.start, column=second.start)
        self._counter.skip(stored.num_bytes - read.nbytes)
        return read if axes else read.flatten()


def check_mixed(plain: Mapping[str, Sequence[StoredTensor]], packed: Mapping[str, Sequence[PackedLayer]]) -> None:
    """Refuse layers of one weight of which only some are packed."""
    for name in plain.keys() & packed.keys():
        tensor = plain[name][0]
        layer = packed[name][0]
        raise CheckpointError(
            f"{tensor.path}: {tensor.name!r} is plain and '{layer.name}.weight' is packed in 4 bits, but they are "
            "multiplied as one, and must both be plain or both be packed: choose another checkpoint"
        )
