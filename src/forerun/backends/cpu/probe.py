"""Measures the native kernels of a pass one by one, in the order of the pass and with its fusions."""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Final

from torch import Tensor

from forerun.backends.backend import InputKind, KernelProbe, OpTimes, OpWork
from forerun.backends.cpu.binding import library
from forerun.backends.cpu.executor import NativeExecutor
from forerun.backends.cpu.layouts import EPILOGUES, FORMATS, GATES, OP_KINDS, NativeOp
from forerun.backends.cpu.linear import PackedLinear
from forerun.core.mixers import GatedDeltaNet
from forerun.core.threads import kernel_threads
from forerun.model.executor import ForwardInput
from forerun.model.gguf_block_types import BLOCKS

KIND_NAMES: Final = {number: name for name, number in reversed(OP_KINDS.items())}  # the first of two names
FORMAT_NAMES: Final = {number: name for name, number in FORMATS.items()}
INPUT_NUMBERS: Final[Mapping[InputKind, int]] = {"float32": 0, "bfloat16": 1, "int16": 2, "int8": 3}  # cpp/peak.cpp
# The type of the inputs that a format's weights are multiplied with, see cpp/kernels.h.
INPUTS: Final[Mapping[str, InputKind]] = {
    "float32": "float32", "bfloat16": "bfloat16", "int8": "int8", "int4": "int8", "int8_wide": "float32",
    **dict.fromkeys(BLOCKS, "int16"),
}  # fmt: skip


class NativeProbe(KernelProbe):
    """The kernels of one executor, with torch's number of threads."""

    def __init__(self, executor: NativeExecutor) -> None:
        self._executor = executor
        linears = executor.lowering.linears
        self._linears = {linear.descriptor.weights: (name, linear) for name, linear in linears.items()}

    @property
    def tier(self) -> str:
        name: bytes = library().forerun_tier()
        return name.decode()

    def work(self, inputs: ForwardInput) -> list[OpWork]:
        return [self._work_of(op, inputs) for op in self._executor.fused.ops if is_run(op, inputs)]

    def time_ops(self, inputs: ForwardInput) -> OpTimes:
        assert not inputs.taps, "the time of an empty call is that of a tap outside the pass"
        ops_s = []
        calls_s = []
        calls = list(zip(self._executor.fused.ops, self._executor.calls(inputs), strict=True))
        next(call for op, call in calls if is_tap(op))()  # wakes the threads, which must not count as an op's time
        for op, call in calls:
            if is_run(op, inputs):
                ops_s.append(seconds_of(call))
            elif is_tap(op):
                calls_s.append(seconds_of(call))
        return OpTimes(ops_s=ops_s, call_s=median(calls_s))

    def read(self, memory: Tensor) -> None:
        library().forerun_read(memory.data_ptr(), memory.nbytes, kernel_threads())

    def multiply_adds(self, inputs: InputKind, num_rounds: int) -> int:
        number: int = library().forerun_multiply_adds(INPUT_NUMBERS[inputs], num_rounds, kernel_threads())
        return number

    def _work_of(self, op: NativeOp, inputs: ForwardInput) -> OpWork:
        kind = KIND_NAMES[op.kind]
        if kind == "tree_attention":
            num_bytes, multiply_adds = self._attention_work(op, inputs)
            return OpWork(name=kind, weights="", num_bytes=num_bytes, multiply_adds=multiply_adds, inputs="float32")
        if kind == "delta_net":
            num_bytes, multiply_adds = self._net_work(inputs)
            return OpWork(name=kind, weights="", num_bytes=num_bytes, multiply_adds=multiply_adds, inputs="float32")
        if kind == "experts":
            return self._experts_work(op, len(inputs.token_ids))
        if kind != "linear":
            return OpWork(name=kind, weights="", num_bytes=0, multiply_adds=0, inputs="float32")
        name, linear = self._linears[op.linear.weights]
        num_rows = inputs.num_logit_rows if op.after_select else len(inputs.token_ids)
        formats = formats_of(linear)
        return OpWork(
            name=fused_name(op, name.rpartition(".")[2]),
            weights=" and ".join(formats),
            num_bytes=sum(part.num_bytes for part in linear.parts()),
            multiply_adds=num_rows * sum(part.descriptor.num_out for part in linear.parts()) * op.linear.num_in,
            inputs=INPUTS[formats[0]],
        )

    def _experts_work(self, op: NativeOp, num_rows: int) -> OpWork:
        """The work if every row chooses other experts, as long as there are others."""
        lowering = self._executor.lowering
        spec = lowering.spec
        experts = lowering.experts[f"layers.{op.layer}.experts"]
        num_chosen = num_rows * spec.num_chosen_experts
        gate_up, out = experts[0]
        formats = formats_of(gate_up)
        return OpWork(
            name="experts",
            weights=" and ".join(formats),
            num_bytes=min(len(experts), num_chosen) * (gate_up.num_bytes + out.num_bytes),
            multiply_adds=3 * num_chosen * spec.hidden_size * spec.intermediate_size,
            inputs=INPUTS[formats[0]],
        )

    def _net_work(self, inputs: ForwardInput) -> tuple[int, int]:
        """Bytes of one layer's state and rows that the pass reads, each counted once, and multiply-adds."""
        net = self._executor.lowering.spec.mixer
        assert isinstance(net, GatedDeltaNet), "a layer with a gated delta net"
        of_row = net.key_size + net.value_size
        num_seen = [position - net.place(position) for position in inputs.positions]
        first_place = net.place(min(inputs.positions))
        num_values = (inputs.num_slots - first_place) * of_row + (net.state_size if first_place else 0)
        return 4 * num_values, 2 * sum(net.state_size + num_rows * of_row for num_rows in num_seen)

    def _attention_work(self, op: NativeOp, inputs: ForwardInput) -> tuple[int, int]:
        """Bytes of one layer's keys and values that the pass reads, each counted once, and multiply-adds."""
        heads = op.heads
        cache = self._executor.lowering.cache
        row_bytes = self._executor.lowering.spec.of_layer(op.layer).kv_row_size(cache.format) * cache.keys_LSKD.itemsize
        num_rows = len(inputs.token_ids)
        num_slots = inputs.first_slot + num_rows
        if inputs.ancestry is None:
            num_seen = sum(range(inputs.first_slot + 1, num_slots + 1))
        else:
            num_seen = num_rows * inputs.prefix_len + int(inputs.ancestry.sum())
        num_bytes = 2 * num_slots * heads.num_kv_heads * row_bytes
        return num_bytes, 2 * num_seen * heads.num_heads * heads.head_dim


def formats_of(linear: PackedLinear) -> list[str]:
    """The distinct formats of a weight's parts."""
    return list(dict.fromkeys(FORMAT_NAMES[part.descriptor.format] for part in linear.parts()))


def fused_name(op: NativeOp, name: str) -> str:
    """A linear's name with the names of the ops fused with it."""
    before = "norm + " if op.norm else ""
    gate = next((gate for gate in GATES if op.epilogue == EPILOGUES[gate]), None)
    return f"{before}{name}" + (f" + {gate}" if gate else "")


def is_tap(op: NativeOp) -> bool:
    return bool(op.kind == OP_KINDS["tap"])


def is_run(op: NativeOp, inputs: ForwardInput) -> bool:
    """True if the op runs in this pass, which has no taps."""
    return not is_tap(op) and not (op.after_select and not inputs.num_logit_rows)


def seconds_of(call: Callable[[], None]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began
