"""Lowers a program to the library's ops: packs weights, and fuses norms and gates with the adjacent linear ops."""

from typing import Final

import torch
from torch import Tensor

from forerun.backends.bind import bind_weights
from forerun.backends.cpu.cores import last_cache_bytes
from forerun.backends.cpu.expert_arrays import GATES as EXPERT_GATES
from forerun.backends.cpu.expert_arrays import ExpertArrays
from forerun.backends.cpu.host_group import HostGroup
from forerun.backends.cpu.layouts import EPILOGUES, GATES, OP_KINDS, Heads, NativeOp, Shape
from forerun.backends.cpu.linear import PackedLinear
from forerun.backends.cpu.packed_file import open_packed
from forerun.backends.kept_weights import KeptWeights
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.model.program import Op
from forerun.model.quantise import as_plain
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import BlockWeight, DenseWeight, StackedWeight, Table, Weight, WeightSource

MOST_OF_CACHE: Final = 0.75  # weights up to this share of the last-level cache are assumed to stay in it
NOT_RUN: Final = ("mask", "select_rows")  # no native ops; `Pass` has their information


class Lowering:
    """A program bound to weights and a cache, in the library's format.

    Attributes: `linears` are the packed weights by their names in the program, `shape` describes the model and its
    cache, `ops` are the ops that compute something, `widths` has the floats per row of each buffer, and `holds` keeps
    alive the memory that `shape` and the lowered ops point to.
    """

    def __init__(
        self,
        spec: ModelSpec,
        program: tuple[Op, ...],
        weights: WeightSource,
        cache: TreeCache,
        group: HostGroup | None = None,
        *,
        input_bits: int = 16,
        kept: KeptWeights | None = None,
    ) -> None:
        self.spec, self.cache, self._group, self._last_ops = spec, cache, group, program[-2:]
        self._file = open_packed(kept)
        self._head: Weight | None = None
        self.ops = [op for op in program if op.kind not in NOT_RUN]
        self.sublayers = {name: number for number, name in enumerate(all_sublayers(spec.num_layers))}
        bound = bind_weights(
            spec,
            program,
            weights,
            cache=cache,
            pack_linear=self._pack,
            pack_norm=lambda weight_H: weight_H.float().contiguous(),
        )
        self.experts = bound.experts
        self._sinks = {name: sinks_Q.float().contiguous() for name, sinks_Q in bound.sinks.items()}
        self.linears, self._norms, self._head_norms = bound.linears, bound.norms, bound.head_norms
        self._rotations, self._query_scales = bound.rotations, bound.query_scales[spec.head_dim]
        self._embedding_scale = bound.embedding_scale
        self._table = self._pack_table(bound.table)  # `bound` is not kept
        if self._file is not None:
            self._file.finish()
        self._say_how_to_read(input_bits)
        self.shape = self._describe_model()
        self._expert_arrays = {name: ExpertArrays(pairs) for name, pairs in self.experts.items()}
        self.holds = (
            self.experts, self._expert_arrays, self._sinks,
            self.linears, self._norms, self._head_norms, self._rotations, self._query_scales, self._table, cache, group
        )  # fmt: skip
        self.widths = self._widths(self.linears[program[-1].weights])

    def _widths(self, head: PackedLinear) -> dict[str, int]:
        spec = self.spec
        return {
            "x": spec.hidden_size,
            "h": spec.hidden_size,
            "qkv": spec.q_size + 2 * spec.kv_size,
            "q": spec.q_size,
            "mixed": spec.q_size,
            "gate_up": 0 if spec.num_experts else 2 * spec.intermediate_size,
            "gated": 0 if spec.num_experts else spec.intermediate_size,
            "partial": spec.hidden_size,
            "branch": spec.hidden_size,
            "router": spec.num_experts,
            "expert_gated": spec.num_chosen_experts * spec.intermediate_size,
            "expert_products": spec.num_chosen_experts * spec.hidden_size,
            "logits": sum(part.descriptor.num_out for part in head.parts()),
        }

    @property
    def work_of_experts(self) -> int:
        """Multiplications of one row with its experts, in all layers."""
        spec = self.spec
        return 3 * spec.num_layers * spec.num_chosen_experts * spec.hidden_size * spec.intermediate_size

    def lower(self, *, fuse: bool) -> list[NativeOp]:
        """The library's ops; unfused there is one for each of `ops`."""
        numbers = {name: number for number, name in enumerate(self.widths)}
        lowered: list[NativeOp] = []
        previous: Op | None = None
        for op in self.ops:
            native = self._lower(op, numbers)
            follows_norm = previous is not None and previous.kind == "norm"
            if fuse and follows_norm and op.writes != "router":  # experts read its norm, too
                native.norm, native.reads = lowered[-1].norm, lowered[-1].reads
                lowered[-1] = native
            elif fuse and op.kind in GATES and lowered[-1].linear.paired:
                lowered[-1].epilogue, lowered[-1].writes = EPILOGUES[op.kind], native.writes
            else:
                lowered.append(native)
            previous = op
        return lowered

    def _lower(self, op: Op, numbers: dict[str, int]) -> NativeOp:
        is_sum = op.kind in ("linear_add", "add_partials", "norm_add", "experts")
        assert not is_sum or op.reads[-1] == op.writes, "rows that skip a sum keep what is there"
        native = NativeOp(
            kind=OP_KINDS["linear" if op.kind == "linear_add" else op.kind],
            reads=numbers.get(op.reads[0], -1),
            writes=numbers.get(op.writes, -1),
            residual=numbers[op.reads[-1]] if is_sum else -1,
            sublayer=-1 if op.sublayer is None else self.sublayers[op.sublayer],
            layer=op.layer,
            after_select=int(op in self._last_ops),
            window=(op.kind == "tree_attention" and self.spec.window_of(op.layer)) or 0,
        )
        if "linear" in op.kind:
            native.linear = self.linears[op.weights].descriptor
            native.epilogue = EPILOGUES["add" if op.kind == "linear_add" else "store"]
        elif op.kind == "experts":
            native.experts = self._expert_arrays[op.weights].describe(self.spec, numbers)
            native.epilogue = EPILOGUES[EXPERT_GATES[self.spec.gate]]
        elif op.kind == "tree_attention" and op.weights:
            native.sinks = self._sinks[op.weights].data_ptr()
        elif op.kind in ("norm", "norm_add"):
            native.norm = self._norms[op.weights].data_ptr()
        elif op.kind == "norm_qk" or (op.kind == "rope_append" and self.spec.qk_norm):
            native.q_norm, native.k_norm = (norm.data_ptr() for norm in self._head_norms[op.weights])
        if op.kind == "rope_append":
            native.cos_sin = self._rotations[self.spec.rope_of(op.layer)].data_ptr()
            native.query_scales = None if self._query_scales is None else self._query_scales.data_ptr()
        return native

    def _pack(self, op: Op, weight: Weight, bias_O: Tensor | None) -> PackedLinear:
        """Pack an op's weight; gate and up are interleaved if they have the same format."""
        if op is self._last_ops[-1]:
            self._head = weight
        if op.kind == "experts" and isinstance(weight, StackedWeight):
            weight = DenseWeight(values_OI=as_plain(weight))  # gate and up of two formats
        is_paired = op.writes == "gate_up" and not isinstance(weight, StackedWeight)
        paired = weight.shape[0] // 2 if is_paired else 0
        return PackedLinear.pack(weight, bias_O, paired=paired, name=op.weights, file=self._file)

    def _pack_table(self, table: Table) -> PackedLinear | Tensor:
        """The head's packed weight if the embedding is tied to it; otherwise the table, packed if it has blocks."""
        head, self._head = self._head, None
        if table is head:
            return self.linears[self._last_ops[-1].weights]
        if isinstance(table, BlockWeight):
            return PackedLinear.pack(table, None, name="table", file=self._file)
        return table.values_OI.contiguous()

    def _describe_model(self) -> Shape:
        spec, cache = self.spec, self.cache
        keys, values = cache.keys_LSKD, cache.values_LSKD
        shape = Shape(
            heads=Heads(spec.num_heads, spec.num_kv_heads, spec.head_dim),
            num_layers=spec.num_layers,
            capacity=cache.capacity,
            eps=spec.norm_eps,
            embedding_scale=self._embedding_scale,
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            cache_is_bf16=int(keys.dtype == torch.bfloat16),
            num_sublayers=len(self.sublayers),
            link=None if self._group is None else self._group.link,
        )
        if isinstance(self._table, PackedLinear):
            shape.packed_table = self._table.descriptor
        else:
            shape.table, shape.table_is_bf16 = self._table.data_ptr(), int(self._table.dtype == torch.bfloat16)
        return shape

    def _say_how_to_read(self, input_bits: int) -> None:
        """Set the bits of inputs. Weights that are too large to stay in the cache until the next pass bypass it, since
        they would only evict other data."""
        experts = [linear for pairs in self.experts.values() for pair in pairs for linear in pair]
        linears = [part for linear in (*self.linears.values(), *experts) for part in linear.parts()]
        streams = sum(linear.num_bytes for linear in linears) > last_cache_bytes() * MOST_OF_CACHE
        for linear in linears:
            linear.descriptor.streams, linear.descriptor.input_bits = streams, input_bits
