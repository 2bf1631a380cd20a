"""Write one rank's typed weights to a safetensors file, and read them.

A linear layer is stored as NAME.weight in a floating dtype, as NAME.int8 with NAME.scales, or as NAME.int4 with
NAME.scales, NAME.zeros and NAME.group_size; a byte holds two 4-bit codes, the first in its lower half.

Legend: O output features, I input features, G groups of consecutive input features, B bytes of a row.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.checkpoints.prepared.manifest import PREPARE_AGAIN
from forerun.checkpoints.safetensors.header import ITEM_BYTES, StoredTensor, read_header
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES
from forerun.checkpoints.source import BytesRead
from forerun.checkpoints.stored_weights import BytesCounter
from forerun.checkpoints.typed_weights import HEAD, TABLE
from forerun.core.errors import CheckpointError
from forerun.core.json_file import short
from forerun.core.model_spec import ModelSpec
from forerun.model.quantise import as_plain
from forerun.model.slicing import take_part
from forerun.model.weights import WHOLE, DenseWeight, Int4Weight, Int8Weight, Part, Shape, Weight, WeightSource
from forerun.sharding.plan import ShardPlan
from forerun.sharding.weights import LEADER, part_of

CODE_BYTES: Final = {"U8": 1, "I8": 1, "I32": 4}
CODE_DTYPES: Final = {"U8": torch.uint8, "I8": torch.int8, "I32": torch.int32}
BOTTOM: Final = 15  # mask of a byte's lower half


def rank_shapes(spec: ModelSpec, plan: ShardPlan) -> dict[str, tuple[int, ...]]:
    """The shape of every weight of a rank, by its name with the suffix ".weight" or ".bias"."""
    shapes = fused_shapes(tensor_plan(plan.local(spec)))
    shapes[f"{HEAD}.weight"] = (plan.vocab.size, spec.hidden_size)
    is_others = plan.rank != LEADER
    return {name: shape for name, shape in shapes.items() if not (is_others and name.endswith("_out.bias"))}


def rank_tensors(weights: WeightSource, spec: ModelSpec, plan: ShardPlan) -> dict[str, Tensor]:
    """Every tensor of a rank's file.

    Args:
        weights: the rank's own part.
    """
    return {name: tensor.contiguous().cpu() for name, tensor in _rank_tensors(weights, spec, plan)}


def _rank_tensors(weights: WeightSource, spec: ModelSpec, plan: ShardPlan) -> Iterator[tuple[str, Tensor]]:
    yield TABLE, as_plain(weights.table())
    for name, shape in rank_shapes(spec, plan).items():
        module, _, kind = name.rpartition(".")
        if name == TABLE or kind == "bias":
            continue  # a bias is read with its weight
        if len(shape) == 1:
            yield name, weights.vector(module)
            continue
        weight, bias_O = weights.linear(module)
        if module != HEAD or not isinstance(weight, DenseWeight) or not spec.tied_embeddings:
            yield from ((f"{module}.{suffix}", tensor) for suffix, tensor in stored_tensors(weight))
        if bias_O is not None:
            yield f"{module}.bias", bias_O


def stored_tensors(weight: Weight) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a weight is stored as, by suffix."""
    match weight:
        case DenseWeight():
            yield "weight", weight.values_OI
        case Int8Weight():
            yield "int8", weight.values_OI
            yield "scales", weight.scales_O
        case Int4Weight():
            yield "int4", in_bytes(weight.values_OI)
            yield "scales", weight.scales_OG
            yield "zeros", weight.zeros_OG
            yield "group_size", torch.tensor([weight.group_size], dtype=torch.int32)
        case _:
            raise AssertionError("blocks of a file of codes are not prepared")


def in_bytes(codes_OI: Tensor) -> Tensor:
    """Pack 4-bit codes, two per byte: uint8 [O, I / 2 rounded up]."""
    even_OI = functional.pad(codes_OI, (0, codes_OI.shape[1] % 2))
    return even_OI[:, ::2] | (even_OI[:, 1::2] << 4)


def from_bytes(codes_OB: Tensor, num_in: int) -> Tensor:
    """Unpack codes [O, I], one per byte."""
    return torch.stack((codes_OB & BOTTOM, codes_OB >> 4), -1).flatten(1)[:, :num_in]


class RankWeights:
    """A WeightSource of one rank's file, which reads each weight on request.

    Args:
        dtype: of unquantised tensors, and the compute dtype of kernels without products of codes.

    Raises:
        CheckpointError: the file does not hold exactly the rank's tensors; names file and tensor.
    """

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        plan: ShardPlan,
        *,
        dtype: torch.dtype,
        device: str = "cpu",
        on_progress: BytesRead | None = None,
    ) -> None:
        self._path = path
        self._spec = spec
        self._plan = plan
        self._dtype = dtype
        self._device = device
        self._shapes = rank_shapes(spec, plan)
        tensors = read_header(path, ITEM_BYTES | CODE_BYTES)
        self._stored = {tensor.name: tensor for tensor in tensors}
        self._counter = BytesCounter(tensors, on_progress)
        self._check()
        self._table: DenseWeight | None = None

    @property
    def is_tied(self) -> bool:
        """Whether the output is the embedding."""
        return not self._stored.keys() & {f"{HEAD}.weight", f"{HEAD}.int8", f"{HEAD}.int4"}

    def table(self) -> DenseWeight:
        if self._table is None:
            self._table = DenseWeight(values_OI=self._read(TABLE, self._dtype))
        return self._table

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        if part != WHOLE:
            raise AssertionError(f"a rank's part of {name} is not divided again")
        bias_O = self._read(f"{name}.bias", self._dtype) if f"{name}.bias" in self._stored else None
        if f"{name}.int8" in self._stored:
            scales_O = self._read(f"{name}.scales")
            return Int8Weight(values_OI=self._read(f"{name}.int8"), scales_O=scales_O, dtype=self._dtype), bias_O
        if f"{name}.int4" in self._stored:
            return self._int4(name), bias_O
        if f"{name}.weight" not in self._stored:
            return take_part(self.table(), part_of(HEAD, self._spec, self._plan)), bias_O
        return DenseWeight(values_OI=self._read(f"{name}.weight", self._dtype)), bias_O

    def vector(self, name: str) -> Tensor:
        wide = torch.promote_types(self._dtype, torch.float32)
        return self._read(f"{name}.weight", wide if self._spec.wide_norms else self._dtype)

    def _int4(self, name: str) -> Int4Weight:
        (group_size,) = self._read(f"{name}.group_size").tolist()
        _, num_in = self._shapes[f"{name}.weight"]
        num_groups = self._stored[f"{name}.scales"].shape[1]
        if group_size < 1 or -(-num_in // group_size) != num_groups:
            raise CheckpointError(
                f"{self._path}: {name}.group_size is {group_size}, but {num_in} inputs have {num_groups} groups: "
                f"{PREPARE_AGAIN}"
            )
        return Int4Weight(
            values_OI=from_bytes(self._read(f"{name}.int4"), num_in),
            scales_OG=self._read(f"{name}.scales"),
            zeros_OG=self._read(f"{name}.zeros"),
            group_size=group_size,
            dtype=self._dtype,
        )

    def _read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor to the device, in `dtype` or as stored."""
        stored = self._stored[name]
        own = (TORCH_DTYPES | CODE_DTYPES)[stored.dtype]
        read = torch.empty(stored.shape, dtype=dtype or own, device=self._device)
        self._counter.read(stored, read.view(stored.shape[0], -1), own)
        return read

    def _check(self) -> None:
        """Refuse a tensor that is missing, unknown, or of another shape or dtype."""
        wanted: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        for name, shape in self._shapes.items():
            module = name.removesuffix(".weight")
            if len(shape) == 1 or name == TABLE or not self._is_coded(module):
                wanted[name] = shape, tuple(ITEM_BYTES)
            else:
                wanted |= self._coded(module, (shape[0], shape[1]))
        if self._spec.tied_embeddings and f"{HEAD}.weight" not in self._stored:
            wanted.pop(f"{HEAD}.weight", None)
        for name in wanted.keys() | self._stored.keys():
            stored = self._stored.get(name)
            shape, dtypes = wanted.get(name, ((), ()))
            if stored is None or stored.shape != shape or stored.dtype not in dtypes:
                seen = "is missing" if stored is None else f"is {stored.dtype} of shape {list(stored.shape)}"
                needed = f"{' or '.join(dtypes)} of shape {list(shape)}" if dtypes else "no such tensor"
                raise CheckpointError(
                    f"{self._path}: tensor {short(name)} {seen}, but rank {self._plan.rank} of {self._plan.num_ranks} "
                    f"has {needed}: {PREPARE_AGAIN}"
                )

    def _is_coded(self, module: str) -> bool:
        return f"{module}.int8" in self._stored or f"{module}.int4" in self._stored

    def _coded(self, module: str, shape: Shape) -> Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]]:
        """The tensors of a weight in codes."""
        num_out, num_in = shape
        if f"{module}.int8" in self._stored:
            return {f"{module}.int8": (shape, ("I8",)), f"{module}.scales": ((num_out,), ("F32",))}
        scales = self._stored.get(f"{module}.scales")
        num_groups = scales.shape[-1] if scales is not None and scales.shape else 0
        return {
            f"{module}.int4": ((num_out, -(-num_in // 2)), ("U8",)),
            f"{module}.scales": ((num_out, num_groups), ("F32",)),
            f"{module}.zeros": ((num_out, num_groups), ("U8",)),
            f"{module}.group_size": ((1,), ("I32",)),
        }


def formats_of(tensors: Iterable[StoredTensor]) -> Iterator[tuple[str, int]]:
    """Each tensor's format and bytes; the format is that of the codes that it belongs to, else its dtype."""
    parts = [(*tensor.name.rpartition(".")[::2], tensor) for tensor in tensors]
    codes = {module: suffix for module, suffix, _ in parts if suffix in ("int8", "int4")}
    for module, suffix, tensor in parts:
        yield tensor.dtype if suffix == "bias" else codes.get(module, tensor.dtype), tensor.num_bytes
