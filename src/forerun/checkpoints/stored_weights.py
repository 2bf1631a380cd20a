"""A checkpoint's tensors as a WeightSource: each weight is read on request, and for a part only the part is read.

Legend: O output features, I input features, R rows, C columns: elements, or bytes of blocks of codes.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from math import prod
from typing import Final, TypeAlias, cast

import torch
from torch import Tensor

from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.checkpoints.safetensors.reader import TORCH_DTYPES, read_window
from forerun.checkpoints.source import BytesRead
from forerun.checkpoints.typed_weights import HEAD, TABLE, in_format, own_format
from forerun.core.model_spec import WeightFormat
from forerun.model.gguf_block_types import BLOCKS, BlockType
from forerun.model.quantise import as_plain, blocks
from forerun.model.slicing import take_bias, take_columns, take_part
from forerun.model.weights import WHOLE, BlockWeight, DenseWeight, Part, Piece, RowsInFile, StackedWeight, Table, Weight

DENSE: Final = "dense"
RATES: Final = "_rates.weight"
CORRECTION: Final = "router_correction.weight"
Rows: TypeAlias = Sequence[Piece]  # of one stored tensor
Section: TypeAlias = tuple[StoredTensor, Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """How the tensors of a file differ from the weights that the model computes with.

    Args:
        is_wide: norms are at least float32, whatever the dtype.
        norm_offset: the number that is added to the weight of a norm.
        has_log_rates: the rates of decays are stored as the logarithms of their opposites.
        head_order: see `model.rope.head_order`; for the rows of queries and keys.
        head_dim: rows of a head.
    """

    is_wide: bool = False
    norm_offset: float = 0.0
    has_log_rates: bool = False
    head_order: Sequence[int] = ()
    head_dim: int = 0


AS_STORED: Final = Traits()
# Rows of queries and keys, of all heads or of one, and their norms.
TURNED: Final = re.compile(r".*\.(self_attn\.[qk]_(proj|norm)|attn_[qk](_norm)?)(\.\d+)?\.(weight|bias)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockScales:
    """Factors of a stored weight: one for each block of rows and columns."""

    values_RC: Tensor
    block: tuple[int, int]

    def window(self, row: int, column: int, shape: torch.Size) -> Tensor:
        """The factor of every element of a window that begins at this row and column."""
        rows, columns = (
            (first + torch.arange(size)) // unit
            for first, size, unit in zip((row, column), shape, self.block, strict=True)
        )
        return self.values_RC[rows[:, None], columns]


class BytesCounter:
    """Reports how many bytes were read or skipped.

    Args:
        tensors: all tensors to read.
    """

    def __init__(self, tensors: Iterable[StoredTensor], on_progress: BytesRead | None) -> None:
        self._num_total = sum(tensor.num_bytes for tensor in tensors)
        self._num_done = 0
        self._on_progress = on_progress

    def read(
        self, tensor: StoredTensor, target_RC: Tensor, dtype: torch.dtype, *, row: int = 0, column: int = 0
    ) -> None:
        """See `read_window`."""
        for num_bytes in read_window(tensor, target_RC, dtype, row=row, column=column):
            self.skip(num_bytes)

    def skip(self, num_bytes: int) -> None:
        """Count bytes as read."""
        self._num_done += num_bytes
        if num_bytes and self._on_progress is not None:
            self._on_progress(min(self._num_done, self._num_total), self._num_total)


class StoredWeights:
    """A WeightSource of tensors in files.

    Args:
        parts: the tensors of each weight of the model in the order of their rows, by its name with the suffix ".weight"
            or ".bias"; without a head, the embedding is the head too.
        dtype, weight_format, device, on_progress: see `Reading`.
        counter: counts the bytes read, together with those of other weights; it then replaces `on_progress`.
        traits: how the tensors differ from the model's weights.
        scales: factors of the stored values, by the name of their tensor.
    """

    def __init__(
        self,
        parts: Mapping[str, Sequence[StoredTensor]],
        *,
        dtype: torch.dtype,
        weight_format: WeightFormat = "plain",
        device: str = "cpu",
        on_progress: BytesRead | None = None,
        counter: BytesCounter | None = None,
        traits: Traits = AS_STORED,
        scales: Mapping[str, BlockScales] | None = None,
    ) -> None:
        self._parts = parts
        self._traits = traits
        self._scales = scales or {}
        self._counter = counter or BytesCounter(chain.from_iterable(parts.values()), on_progress)
        self._dtype = dtype
        self._format = weight_format
        self._device = device
        self._table: Table | None = None

    @property
    def names(self) -> Sequence[str]:
        """The names of all weights."""
        return list(self._parts)

    def table(self) -> Table:
        if self._table is None:
            (tensor,) = self._parts[TABLE]
            self._table = self._join(kind_of(tensor), [(tensor, all_rows(tensor))])
        return self._table

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        weight_format = own_format(name, self._format)
        is_shared = name == HEAD and f"{HEAD}.weight" not in self._parts
        needs_whole = is_shared or (weight_format != "plain" and part.columns is not None)  # scales need all
        stored = self.table() if is_shared else self._read(f"{name}.weight", WHOLE if needs_whole else part)
        weight = in_format(stored, weight_format)
        return take_part(weight, part) if needs_whole else weight, self.bias(name, part)

    def bias(self, name: str, part: Part = WHOLE) -> Tensor | None:
        """The bias [O] of a part's outputs, if the layer has one."""
        return take_bias(self.tensor(f"{name}.bias"), part) if f"{name}.bias" in self._parts else None

    def vector(self, name: str) -> Tensor:
        return self.tensor(f"{name}.weight")

    def tensor(self, name: str) -> Tensor:
        """A whole weight, such as "layers.0.qkv.weight", as plain values."""
        tensors = self._parts[name]
        if name.endswith("norm.weight"):
            return self._norm(tensors)
        if name.endswith((RATES, CORRECTION)):
            wide = torch.promote_types(self._dtype, torch.float32)
            values = self._read_rows([(tensors[0], all_rows(tensors[0]))], None, wide).flatten()
            return -values.exp() if self._traits.has_log_rates and name.endswith(RATES) else values
        plain = as_plain(self._read(name, WHOLE))
        return plain.flatten() if len(tensors[0].shape) == 1 else plain

    def _norm(self, tensors: Sequence[StoredTensor]) -> Tensor:
        wide = torch.promote_types(self._dtype, torch.float32) if self._traits.is_wide else self._dtype
        sections = [(tensor, all_rows(tensor)) for tensor in tensors]
        return self._read_rows(sections, None, wide).flatten() + self._traits.norm_offset

    def _read(self, name: str, part: Part) -> Weight:
        """Stack the rows of a weight's tensors; consecutive tensors of one format are joined."""
        if part.columns is not None:
            (tensor,) = self._parts[name]
            return self._read_columns(tensor, part.columns)
        runs = groupby(sections_of(self._parts[name], part), key=lambda section: kind_of(section[0]))
        joined = [self._join(kind, list(run)) for kind, run in runs]
        return joined[0] if len(joined) == 1 else StackedWeight(parts=tuple(joined))

    def _join(self, kind: str, sections: Sequence[Section]) -> DenseWeight | BlockWeight:
        if kind == DENSE:
            return DenseWeight(values_OI=self._read_rows(sections, None, self._dtype))
        rows = self._rows_in_file(sections)
        blocks_OB = None if rows is not None else self._read_rows(sections, None, torch.uint8)
        return BlockWeight(blocks_OB=blocks_OB, rows=rows, block_type=cast(BlockType, kind), dtype=self._dtype)

    def _rows_in_file(self, sections: Sequence[Section]) -> RowsInFile | None:
        """The places of stacked rows of codes in their file; None if they are in several files."""
        path = sections[0][0].path
        row_bytes = columns_of(sections[0][0])
        if any(tensor.path != path for tensor, _ in sections):
            return None
        places = list[Tensor]()
        for tensor, rows in sections:
            first = [
                tensor.offset + piece.start * row_bytes + torch.arange(piece.num_real) * row_bytes for piece in rows
            ]
            padding = [torch.full((piece.padding,), -1) for piece in rows]
            own_O = torch.cat([part for pair in zip(first, padding, strict=True) for part in pair])
            places.append(self._in_order(own_O[:, None]).flatten() if self._is_turned(tensor) else own_O)
        return RowsInFile(
            path=path,
            places_O=torch.cat(places),
            row_bytes=row_bytes,
            read=partial(self._read_rows, sections, None, torch.uint8),
            tell=partial(self._counter.skip, sum(tensor.num_bytes for tensor, _ in sections)),
        )

    def _read_columns(self, tensor: StoredTensor, columns: Piece) -> Weight:
        """Read some inputs of a weight that is one tensor; for codes, whole blocks are read."""
        kind = kind_of(tensor)
        section = (tensor, all_rows(tensor))
        if kind == DENSE:
            return DenseWeight(values_OI=self._read_rows([section], columns, self._dtype))
        block_type = cast(BlockType, kind)
        num_elements, num_bytes = BLOCKS[block_type]
        first = min(columns.start // num_elements, columns_of(tensor) // num_bytes - 1)
        last = max(first + 1, -(-columns.stop // num_elements))
        blocks_OB = self._read_rows([section], Piece(start=first * num_bytes, stop=last * num_bytes), torch.uint8)
        weight = BlockWeight(blocks_OB=blocks_OB, block_type=block_type, dtype=self._dtype)
        return take_columns(weight, columns.scaled(1, -first * num_elements))

    def _read_rows(self, sections: Sequence[Section], columns: Piece | None, dtype: torch.dtype) -> Tensor:
        """Read and stack rows of tensors in a dtype: [R, C]; for vectors [R, 1]."""
        if columns is None:
            columns = Piece(start=0, stop=columns_of(sections[0][0]))
        num_rows = sum(piece.size for _, rows in sections for piece in rows)
        num_columns = columns.num_real
        joined_RC = torch.zeros(num_rows, columns.size, dtype=dtype, device=self._device)
        end = 0
        for tensor, rows in sections:
            first = end
            stored_dtype = TORCH_DTYPES.get(tensor.dtype, torch.uint8)
            for piece in rows:
                target_RC = joined_RC[end : end + piece.num_real, :num_columns]
                self._fill(tensor, target_RC, row=piece.start, column=columns.start)
                end += piece.size
            num_read = sum(piece.num_real for piece in rows) * num_columns * stored_dtype.itemsize
            self._counter.skip(max(0, tensor.num_bytes - num_read))  # a head is read once for each of its copies
            if self._is_turned(tensor):
                joined_RC[first:end] = self._in_order(joined_RC[first:end])
        return joined_RC

    def _fill(self, tensor: StoredTensor, target_RC: Tensor, *, row: int, column: int) -> None:
        """Read a window of a tensor. Scaled values are rounded once, from float32, some rows at a time."""
        stored_dtype = TORCH_DTYPES.get(tensor.dtype, torch.uint8)
        scales = self._scales.get(tensor.name)
        if scales is None:
            self._counter.read(tensor, target_RC, stored_dtype, row=row, column=column)
        elif target_RC.numel():
            for rows in blocks(target_RC):
                values_RC = torch.empty(target_RC[rows].shape)
                first = row + rows.start
                self._counter.read(tensor, values_RC, stored_dtype, row=first, column=column)
                target_RC[rows] = values_RC.mul_(scales.window(first, column, values_RC.shape))

    def _is_turned(self, tensor: StoredTensor) -> bool:
        """Whether the rows of a head are stored in another order than the kernels rotate them in."""
        return bool(self._traits.head_order) and TURNED.fullmatch(tensor.name) is not None

    def _in_order(self, rows_RC: Tensor) -> Tensor:
        """Reorder the rows of heads. Whole rows are moved, packed or not."""
        heads = rows_RC.view(-1, self._traits.head_dim, rows_RC.shape[1])
        return heads[:, list(self._traits.head_order)].reshape(rows_RC.shape)


def kind_of(tensor: StoredTensor) -> str:
    return DENSE if tensor.dtype in TORCH_DTYPES else tensor.dtype


def columns_of(tensor: StoredTensor) -> int:
    """Elements of a row, or bytes if it holds codes."""
    return prod(tensor.shape[1:]) if kind_of(tensor) == DENSE else tensor.num_bytes // tensor.shape[0]


def all_rows(tensor: StoredTensor) -> Rows:
    return [Piece(start=0, stop=tensor.shape[0])]


def sections_of(tensors: Sequence[StoredTensor], part: Part) -> list[Section]:
    """Every tensor of a weight with the wanted rows, relative to the tensor's first row."""
    if part.rows is None:
        return [(tensor, all_rows(tensor)) for tensor in tensors]
    sections = list[Section]()
    first = 0
    for tensor, rows in zip(tensors, part.rows, strict=True):
        sections.append((tensor, [piece.scaled(1, -first) for piece in rows]))
        first += tensor.shape[0]
    return sections
