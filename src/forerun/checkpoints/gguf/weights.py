"""A GGUF file's tensors as a WeightSource: codes stay packed as they are in the file.

Legend: O output features, I input features, R rows of one tensor, B bytes of a row.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Final, cast

import torch
from torch import Tensor

from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.names import gguf_plan, in_halves, is_ignorable, num_interleaved_heads
from forerun.checkpoints.gguf.reader import read_bytes
from forerun.checkpoints.huggingface.load import MAX_LISTED
from forerun.checkpoints.huggingface.names import TensorPlace
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES
from forerun.checkpoints.typed_weights import HEAD, TABLE
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.blocks import BlockType
from forerun.model.quantise import as_plain, head_format, quantise
from forerun.model.weights import BlockWeight, DenseWeight, StackedWeight, Table, Weight

DENSE: Final = "dense"


class GgufWeights:
    """A WeightSource that reads each weight when it is taken, so that no more than one is held here.

    Args:
        dtype: of dense tensors, and that in which a kernel without products of such codes computes.
        weight_format: of linear layers: "plain" leaves them in the file's formats; others are rounded from its values.
        on_progress: called with bytes read so far and bytes to read in all, after each tensor.

    Raises:
        CheckpointError: the file does not hold exactly the tensors of `spec`; names file and tensor.
    """

    def __init__(
        self,
        file: GgufFile,
        spec: ModelSpec,
        *,
        dtype: torch.dtype,
        weight_format: WeightFormat = "plain",
        device: str = "cpu",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._spec, self._dtype, self._format, self._device = spec, dtype, weight_format, device
        self._parts = match_tensors(file, spec)
        self._num_total = sum(tensor.num_bytes for parts in self._parts.values() for tensor in parts)
        self._num_done, self._on_progress = 0, on_progress
        self._table: Table | None = None

    def table(self) -> Table:
        if self._table is None:
            (tensor,) = self._parts[TABLE]
            self._table = self._join(kind_of(tensor), [tensor])
        return self._table

    def linear(self, name: str) -> tuple[Weight, Tensor | None]:
        is_shared = name == HEAD and f"{HEAD}.weight" not in self._parts
        weight = self.table() if is_shared else self._read(f"{name}.weight")
        bias = as_plain(self._read(f"{name}.bias")).flatten() if f"{name}.bias" in self._parts else None
        weight_format = head_format(self._format) if name == HEAD else self._format
        return (weight if weight_format == "plain" else quantise(as_plain(weight), weight_format)), bias

    def vector(self, name: str) -> Tensor:
        return as_plain(self._read(f"{name}.weight")).flatten()

    def _read(self, name: str) -> DenseWeight | BlockWeight | StackedWeight:
        """The tensors of a weight, one under another; neighbours of one format are one."""
        parts = [self._join(kind, list(run)) for kind, run in groupby(self._parts[name], key=kind_of)]
        return parts[0] if len(parts) == 1 else StackedWeight(parts=tuple(parts))

    def _join(self, kind: str, tensors: Iterable[StoredTensor]) -> DenseWeight | BlockWeight:
        if kind == DENSE:
            values = [self._rows(tensor).view(TORCH_DTYPES[tensor.dtype]).to(self._dtype) for tensor in tensors]
            return DenseWeight(values_OI=stack(values).to(self._device))
        blocks_OB = stack([self._rows(tensor) for tensor in tensors]).to(self._device)
        return BlockWeight(blocks_OB=blocks_OB, block_type=cast(BlockType, kind), dtype=self._dtype)

    def _rows(self, tensor: StoredTensor) -> Tensor:
        """A tensor's bytes [R, B], its rows in the order of training; a vector counts as rows of one element."""
        rows_RB = torch.frombuffer(read_bytes(tensor), dtype=torch.uint8).view(tensor.shape[0], -1)
        self._num_done += tensor.num_bytes
        if self._on_progress is not None:
            self._on_progress(self._num_done, self._num_total)
        num_heads = num_interleaved_heads(tensor.name, self._spec)
        return in_halves(rows_RB, num_heads) if num_heads else rows_RB


def kind_of(tensor: StoredTensor) -> str:
    return DENSE if tensor.dtype in TORCH_DTYPES else tensor.dtype


def stack(rows: list[Tensor]) -> Tensor:
    """One under another, without a copy where there is one alone."""
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def match_tensors(file: GgufFile, spec: ModelSpec) -> dict[str, list[StoredTensor]]:
    """The tensors of each weight of the model in the order of their rows, once they are known to be all that it has."""
    plan = gguf_plan(spec)
    for tensor in file.tensors.values():
        if tensor.name in plan:
            _check(tensor, plan[tensor.name])
        elif not is_ignorable(tensor.name):
            raise CheckpointError(
                f"{tensor.path} holds tensor {short(tensor.name)}, which no {spec.family} model has that forerun "
                "computes: choose another file of the model"
            )
    missing = [name for name in plan if name not in file.tensors]
    if missing:
        listed = ", ".join(repr(name) for name in missing[:MAX_LISTED])
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        raise CheckpointError(f"{file.path} lacks tensor {listed}{more}: fetch the file again")
    return _by_weight(file, plan)


def _by_weight(file: GgufFile, plan: Mapping[str, TensorPlace]) -> dict[str, list[StoredTensor]]:
    """The plan names the rows of a weight in their order."""
    parts: dict[str, list[StoredTensor]] = {}
    for name, place in plan.items():
        parts.setdefault(place.name, []).append(file.tensors[name])
    return parts


def _check(tensor: StoredTensor, place: TensorPlace) -> None:
    if tensor.shape != place.shape:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} has shape {list(tensor.shape)}, but the file's own metadata "
            f"need {list(place.shape)}: fetch the file again"
        )
    if len(tensor.shape) == 1 and kind_of(tensor) != DENSE:
        raise CheckpointError(
            f"{tensor.path}: tensor {short(tensor.name)} is a vector of {tensor.dtype}, but must be F32, F16 or BF16: "
            "choose another file of the model"
        )
