"""A folder whose linear layers are packed in 4 bits as a WeightSource; embedding, head and norms are plain."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.load import check_depth, match_tensors
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.checkpoints.huggingface.packed_layers import PackedLayer, packed_layers, stored_plan
from forerun.checkpoints.huggingface.packed_tensors import unpack
from forerun.checkpoints.huggingface.packing import Packing
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES, WHOLE_DTYPES, read_into
from forerun.checkpoints.typed_weights import HEAD, TABLE
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.quantise import as_plain, head_format, quantise
from forerun.model.weights import DenseWeight, Int4Weight, Weight


class PackedWeights:
    """A WeightSource that reads each weight when it is taken, so that no more than one is held here.

    Args:
        dtype: of plain tensors, and that in which a kernel without products of 4 bits computes.
        weight_format: of linear layers: "plain" and "int4" leave packed ones exactly as they are; others are rounded.
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
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._packing, self._dtype, self._format, self._device = packing, dtype, weight_format, device
        present = catalogue(folder)
        check_depth(folder, present, spec)
        plan = tensor_plan(spec)
        self._layers = packed_layers(folder, plan, present, packing)
        needed = stored_plan(plan, self._layers)
        self._stored = {tensor.name: tensor for tensor in match_tensors(folder, present, needed, spec)}
        self._parts: dict[str, list[str]] = {}  # names in the folder, in the order of their rows
        for name, place in plan.items():
            self._parts.setdefault(place.name, []).append(name)
        self._check_parts()
        self._num_total, self._num_done = sum(tensor.num_bytes for tensor in self._stored.values()), 0
        self._on_progress = on_progress
        self._table: DenseWeight | None = None

    def table(self) -> DenseWeight:
        if self._table is None:
            self._table = DenseWeight(values_OI=self._plain(TABLE))
        return self._table

    def linear(self, name: str) -> tuple[Weight, Tensor | None]:
        is_shared = name == HEAD and f"{HEAD}.weight" not in self._parts
        weight = self.table() if is_shared else self._weight(f"{name}.weight")
        bias = self._plain(f"{name}.bias") if f"{name}.bias" in self._parts else None
        weight_format = head_format(self._format) if name == HEAD else self._format
        if weight_format == "plain" or (weight_format == "int4" and isinstance(weight, Int4Weight)):
            return weight, bias
        return quantise(as_plain(weight), weight_format), bias

    def vector(self, name: str) -> Tensor:
        return self._plain(f"{name}.weight")

    def _check_parts(self) -> None:
        """Refuse layers of one weight of which only some are packed."""
        for names in self._parts.values():
            plain = [name for name in names if name not in self._layers]
            if plain and len(plain) < len(names):
                packed = next(name for name in names if name in self._layers)
                raise CheckpointError(
                    f"{self._stored[plain[0]].path}: {plain[0]!r} is plain and {packed!r} is packed in 4 bits, but "
                    "they are multiplied as one, and must both be plain or both be packed: choose another checkpoint"
                )

    def _weight(self, name: str) -> DenseWeight | Int4Weight:
        layers = [self._layers[part] for part in self._parts[name] if part in self._layers]
        if not layers:
            return DenseWeight(values_OI=self._plain(name))
        return one_under_another([self._unpack(layer) for layer in layers], self._device)

    def _unpack(self, layer: PackedLayer) -> Int4Weight:
        """One layer's weight, on the CPU."""
        tensors = {suffix: self._read(f"{layer.name}.{suffix}") for suffix in layer.tensors}
        try:
            if "bias" in tensors and tensors["bias"].any():
                raise CheckpointError("bias is not all zeros, but the model of config.json has no bias there")
            return unpack(self._packing, tensors, layer.shape, self._dtype)
        except CheckpointError as error:
            path = self._stored[f"{layer.name}.{next(iter(tensors))}"].path
            raise CheckpointError(f"{path}: tensor {layer.name}.{error}: choose another checkpoint") from None

    def _plain(self, name: str) -> Tensor:
        """The stored tensors of a weight, one under another."""
        parts = [self._read(part).to(self._device, self._dtype) for part in self._parts[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read(self, name: str) -> Tensor:
        """A tensor as it is stored, on the CPU."""
        stored = self._stored[name]
        tensor = torch.empty(stored.shape, dtype=(TORCH_DTYPES | WHOLE_DTYPES)[stored.dtype])
        for num_bytes in read_into([stored], [tensor]):
            self._num_done += num_bytes
            if self._on_progress is not None:
                self._on_progress(self._num_done, self._num_total)
        return tensor


def one_under_another(parts: Sequence[Int4Weight], device: str) -> Int4Weight:
    """Weights of the same inputs and groups as one, on a device."""
    return Int4Weight(
        values_OI=torch.cat([part.values_OI for part in parts]).to(device),
        scales_OG=torch.cat([part.scales_OG for part in parts]).to(device),
        zeros_OG=torch.cat([part.zeros_OG for part in parts]).to(device),
        group_size=parts[0].group_size,
        dtype=parts[0].dtype,
    )
