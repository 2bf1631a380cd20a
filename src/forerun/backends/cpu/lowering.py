"""Lowers a program to the library's ops: packs weights, and fuses norms and gates with the adjacent linear ops."""

from collections.abc import Mapping, Sequence
from ctypes import addressof, byref
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from forerun.backends.backend import KeptWeights
from forerun.backends.bind import ConvolutionWeights, NetWeights, bind_weights
from forerun.backends.cpu.binding import library
from forerun.backends.cpu.buffers import BufferWidths
from forerun.backends.cpu.cores import last_cache_bytes
from forerun.backends.cpu.host_group import HostGroup
from forerun.backends.cpu.layouts import (
    EPILOGUES,
    GATES,
    OP_KINDS,
    Heads,
    NativeExperts,
    NativeLinear,
    NativeMixer,
    NativeOp,
    NativeTable,
    Shape,
)
from forerun.backends.cpu.linear import PackedLinear
from forerun.backends.cpu.packed_file import open_packed
from forerun.core.mixers import GatedDeltaNet, Mixer
from forerun.core.model_spec import Gate, ModelSpec
from forerun.core.sublayers import all_sublayers
from forerun.model.mixer_rows import MixerRows
from forerun.model.program import Op
from forerun.model.quantise import as_plain
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import BlockWeight, DenseWeight, StackedWeight, Weight, WeightSource

MOST_OF_CACHE: Final = 0.75  # weights up to this share of the last-level cache are assumed to stay in it
CACHE_FORMATS: Final = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}  # as in cpp/kernels.h
MOST_TAPS: Final = 16  # of a convolution, as in cpp/kernels.h
NOT_RUN: Final = ("mask", "select_rows")  # no native ops; `Pass` has their information


class Lowering:
    """A program bound to weights and a cache, in the library's format.

    Attributes: `linears` are the packed weights by their names in the program, `shape` describes the model and its
    cache, `head` is the last linear layer (None: the program computes no logits), `ops` are the ops that compute
    something, `buffers` has the floats per row of each buffer, and `holds` keeps alive the memory that `shape` and the
    lowered ops point to.

    Args:
        known_S: bool, the slots that hold a row, for a cache in which others may be empty: nothing attends to these.
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
        known_S: Tensor | None = None,
    ) -> None:
        self.spec = spec
        self.cache = cache
        self._group = group
        self._head_op = program[-1] if program[-1].writes == "logits" else None
        kinds = [op.kind for op in program]
        self._selected = program[kinds.index("select_rows") :] if "select_rows" in kinds else ()
        self._file = open_packed(kept)
        self._head: Weight | None = None
        self._known_S = known_S
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
        self.linears = bound.linears
        self._norms = bound.norms
        self._head_norms = bound.head_norms
        self._rotations = bound.rotations
        self._query_scales = bound.query_scales
        self._scales = bound.scales
        self._embedding_scale = bound.embedding_scale
        self._layer_table_scale = bound.layer_table_scale
        self._table = self._pack_table(bound.table, "table")  # `bound` is not kept
        self._layer_table = None if bound.layer_table is None else self._pack_table(bound.layer_table, "layer_table")
        if self._file is not None:
            self._file.finish()
        self._set_input_bits_and_streams(input_bits)
        self.shape = self._describe_model()
        self._mixers = {
            layer: NativeMixerLayer(
                spec.mixer, cache.mixer_rows, layer, bound.convolutions[part + "convolution"],
                bound.nets.get(part + "delta_net"),
            )
            for layer, part in ((layer, f"layers.{layer}.") for layer in spec.mixer_layers)
            if part + "convolution" in bound.convolutions and spec.mixer is not None and cache.mixer_rows is not None
        }  # fmt: skip
        self._expert_arrays = {name: ExpertArrays(pairs) for name, pairs in self.experts.items()}
        self.holds = (
            self.experts,
            self._expert_arrays,
            self._mixers,
            self._sinks,
            self.linears,
            self._norms,
            self._head_norms,
            self._rotations,
            self._query_scales,
            self._table,
            self._layer_table,
            cache,
            group,
            known_S,
        )
        self.head = None if self._head_op is None else self.linears[self._head_op.weights]
        heads = () if self.head is None else self.head.parts()
        self.buffers = BufferWidths(spec, sum(part.descriptor.num_out for part in heads))

    @property
    def work_of_experts(self) -> int:
        """Multiplications of one row with its experts, in all layers."""
        spec = self.spec
        return 3 * spec.num_layers * spec.num_chosen_experts * spec.hidden_size * spec.intermediate_size

    def embed(self, token_ids: Tensor) -> Tensor:
        """The embedding's rows [..., H] of some tokens."""
        table = self._table
        if isinstance(table, Tensor):
            return functional.embedding(token_ids, table)
        ids = token_ids.long().contiguous()
        rows = torch.empty(*token_ids.shape, table.descriptor.num_in)
        library().forerun_read_rows(byref(table.descriptor), ids.data_ptr(), ids.numel(), rows.data_ptr())
        return rows

    def lower(self, *, fuse: bool) -> list[NativeOp]:
        """The library's ops; unfused there is one for each of `ops`."""
        numbers = {name: number for number, name in enumerate(self.buffers.widths)}
        lowered: list[NativeOp] = []
        for number, op in enumerate(self.ops):
            native = self._lower(op, numbers)
            if fuse and number and is_normed_for_next(self.ops[number - 1 :]):
                native.norm = lowered[-1].norm
                native.reads = lowered[-1].reads
                lowered[-1] = native
            elif fuse and op.kind in GATES and lowered[-1].linear.paired:
                lowered[-1].epilogue = EPILOGUES[op.kind]
                lowered[-1].writes = native.writes
            else:
                lowered.append(native)
        return lowered

    def _lower(self, op: Op, numbers: dict[str, int]) -> NativeOp:
        is_sum = op.kind in ("linear_add", "add_partials", "norm_add", "add", "experts")
        reads_two = is_sum or op.kind in ("gate_input", "sigmoid_mul", "delta_net")
        assert not is_sum or op.reads[-1] == op.writes, "rows that skip a sum keep what is there"
        reads, writes = (numbers.get(self.buffers.name(name, op.layer), -1) for name in (op.reads[0], op.writes))
        native = NativeOp(
            kind=OP_KINDS["linear" if op.kind == "linear_add" else op.kind],
            reads=reads,
            writes=writes,
            residual=numbers[self.buffers.name(op.reads[-1], op.layer)] if reads_two else -1,
            sublayer=-1 if op.sublayer is None else self.sublayers[op.sublayer],
            layer=self._number_in_cache(op) if op.kind in ("rope_append", "tree_attention") else op.layer,
            after_select=int(op in self._selected),
            window=(op.kind == "tree_attention" and self.spec.window_of(op.layer)) or 0,
        )
        if "linear" in op.kind:
            native.linear = self.linears[op.weights].descriptor
            native.epilogue = EPILOGUES["add" if op.kind == "linear_add" else "store"]
        elif op.kind == "scale":
            native.factor = self._scales[op.weights]
        elif op.kind == "experts":
            native.experts = self._expert_arrays[op.weights].describe(self.spec, numbers)
            native.epilogue = EPILOGUES[EXPERT_GATES[self.spec.gate]]
        elif op.kind in ("convolve", "gated_convolution", "delta_net"):
            native.mixer = addressof(self._mixers[op.layer].described)
        elif op.kind in ("norm", "norm_add", "layer_inputs"):
            native.norm = self._norms[op.weights].data_ptr()
        if op.kind == "layer_inputs":
            native.factor = self.spec.hidden_size**-0.5
        if op is self._head_op and self.spec.logit_cap is not None:
            native.epilogue = EPILOGUES["capped"]
            native.factor = self.spec.logit_cap
        if op.kind in ("norm_qk", "rope_append", "tree_attention"):
            self._describe_attention(op, native)
        return native

    def _number_in_cache(self, op: Op) -> int:
        """The number of the layer whose keys and values an op writes or reads, of those that have some."""
        return self.spec.attention_layers.index(self.spec.cached_layer(op.layer))

    def _describe_attention(self, op: Op, native: NativeOp) -> None:
        """Set the heads, norms and tables of an op of attention."""
        one = self.spec.of_layer(op.layer)
        has_keys = op.kind == "tree_attention" or not self.spec.borrows(op.layer)
        native.heads = Heads(one.num_heads, one.num_kv_heads if has_keys else 0, one.head_dim)
        if op.kind == "tree_attention":
            native.sinks = self._sinks[op.weights].data_ptr() if op.weights else None
            return
        if op.kind == "norm_qk" or self.spec.qk_norm:
            native.q_norm, native.k_norm = (norm.data_ptr() for norm in self._head_norms[op.weights])
        if op.kind == "rope_append":
            scales_P = self._query_scales[one.head_dim]
            native.cos_sin = self._rotations[self.spec.rope_of(op.layer)].data_ptr()
            native.query_scales = None if scales_P is None else scales_P.data_ptr()
            native.norms_values = self.spec.value_norm

    def _pack(self, op: Op, weight: Weight, bias_O: Tensor | None) -> PackedLinear:
        """Pack an op's weight; gate and up are interleaved if they have the same format."""
        if op is self._head_op:
            self._head = weight
        if op.kind == "experts" and isinstance(weight, StackedWeight):
            weight = DenseWeight(values_OI=as_plain(weight))  # gate and up of two formats
        is_paired = op.writes == "gate_up" and not isinstance(weight, StackedWeight)
        paired = weight.shape[0] // 2 if is_paired else 0
        return PackedLinear.pack(weight, bias_O, paired=paired, name=op.weights, file=self._file)

    def _pack_table(self, table: Weight, name: str) -> PackedLinear | Tensor:
        """The head's packed weight if the embedding is tied to it; otherwise the table, packed if it has blocks."""
        head = self._head
        self._head = None
        if self._head_op is not None and table is head:
            return self.linears[self._head_op.weights]
        if isinstance(table, BlockWeight):
            return PackedLinear.pack(table, None, name=name, file=self._file)
        return as_plain(table).contiguous()

    def _describe_model(self) -> Shape:
        spec = self.spec
        cache = self.cache
        keys = cache.keys_LSKD
        values = cache.values_LSKD
        return Shape(
            num_layers=spec.num_layers,
            capacity=cache.capacity,
            eps=spec.norm_eps,
            embedding_scale=self._embedding_scale,
            table=describe_table(self._table),
            layer_table=describe_table(self._layer_table),
            layer_table_scale=self._layer_table_scale,
            layer_input_size=spec.layer_input_size,
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            slot_size=keys[0, 0].numel(),
            cache_format=CACHE_FORMATS[keys.dtype],
            known=None if self._known_S is None else self._known_S.data_ptr(),
            num_sublayers=len(self.sublayers),
            link=None if self._group is None else self._group.link,
        )

    def _set_input_bits_and_streams(self, input_bits: int) -> None:
        """Set the bits of inputs, and whether weights bypass the CPU's cache: they do if they are too large to stay in
        it until the next pass, since they would only evict other data."""
        experts = [linear for pairs in self.experts.values() for pair in pairs for linear in pair]
        linears = [part for linear in (*self.linears.values(), *experts) for part in linear.parts()]
        streams = sum(linear.num_bytes for linear in linears) > last_cache_bytes() * MOST_OF_CACHE
        for linear in linears:
            linear.descriptor.streams = streams
            linear.descriptor.input_bits = input_bits


def is_normed_for_next(ops: Sequence[Op]) -> bool:
    """Whether the first op is a norm that only the next one reads."""
    norm = ops[0]
    if norm.kind != "norm" or norm.writes in norm.reads:
        return False
    end = next((number for number, op in enumerate(ops) if number and op.writes == norm.writes), len(ops))
    readers = [number for number in range(1, end) if norm.writes in ops[number].reads]
    return readers == [1]


def describe_table(table: PackedLinear | Tensor | None) -> NativeTable:
    """A table in the library's format; None: there is none."""
    if isinstance(table, PackedLinear):
        return NativeTable(packed=table.descriptor)
    return NativeTable() if table is None else NativeTable(table.data_ptr(), table.dtype == torch.bfloat16)


EXPERT_GATES: Final[Mapping[Gate, str]] = {"silu": "silu_mul", "gelu_tanh": "gelu_mul", "clamped": "clamped_mul"}


class ExpertArrays:
    """Copies of the descriptors of packed experts, which must be final; the experts keep the weights."""

    def __init__(self, experts: Sequence[tuple[PackedLinear, PackedLinear]]) -> None:
        count = len(experts)
        self._gate_up = (NativeLinear * count)(*(gate_up.descriptor for gate_up, _ in experts))
        self._out = (NativeLinear * count)(*(out.descriptor for _, out in experts))
        self._described = NativeExperts(gate_up=addressof(self._gate_up), out=addressof(self._out))

    def describe(self, spec: ModelSpec, numbers: Mapping[str, int]) -> int:
        """The address of the struct for a program whose buffers have these numbers, which are the same each time."""
        own = self._described
        own.num_experts = spec.num_experts
        own.num_chosen = spec.num_chosen_experts
        own.router, own.gated, own.products = (numbers[name] for name in ("router", "expert_gated", "expert_products"))
        return addressof(own)


class NativeMixerLayer:
    """The weights, rows and states of a layer with a mixer in the library's format, which it keeps alive.

    Args:
        net: of a gated delta net, else None.
    """

    def __init__(
        self, mixer: Mixer, rows: MixerRows, layer: int, convolution: ConvolutionWeights, net: NetWeights | None
    ) -> None:
        self._taps = convolution.taps_CK.T.contiguous()
        self._weights = convolution, net
        inputs_SC, rows_SR = rows.layer(layer)
        bias_C = convolution.bias_C
        described = self.described = NativeMixer(
            num_channels=mixer.num_channels,
            kernel_size=mixer.kernel_size,
            num_slots=rows.num_slots,
            taps=self._taps.data_ptr(),
            bias=None if bias_C is None else bias_C.data_ptr(),
            inputs=inputs_SC.data_ptr(),
            stride=mixer.stride,
        )
        assert mixer.kernel_size <= MOST_TAPS, f"convolutions over {mixer.kernel_size} rows, of at most {MOST_TAPS}"
        if net is None:
            return
        assert isinstance(mixer, GatedDeltaNet)
        states_NHKV, held_2 = rows.states(layer)
        described.num_states = rows.num_states
        described.num_key_heads = mixer.num_key_heads
        described.num_value_heads = mixer.num_value_heads
        described.key_dim = mixer.key_dim
        described.value_dim = mixer.value_dim
        described.has_tiled_keys = int(mixer.has_tiled_keys)
        described.lag = mixer.lag
        described.rates, described.decay_bias, described.scale = (
            vector.data_ptr() for vector in (net.rates_H, net.bias_H, net.scale_V)
        )
        described.rows = rows_SR.data_ptr()
        described.states = states_NHKV.data_ptr()
        described.held = held_2.data_ptr()
