"""The launches of a model's layers by kernel, on buffers filled with random values; torch's own ops beside them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import ceil
from typing import Any

import torch

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.buffers import Buffers, DeviceWeights
from forerun.backends.gpu.executor import DeviceExecutor, num_splits_for
from forerun.backends.gpu.launches import LaunchList
from forerun.backends.gpu.pass_shape import PassShape
from forerun.backends.gpu.passes.linear import linear
from forerun.backends.gpu.passes.packed_linear import DeviceLinear
from forerun.backends.torch.backend import FUSED
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING
from forerun.model.program import Op, build_program
from forerun.model.quantise import weight_bytes
from forerun.model.tree_cache import TreeCache
from forerun_lab.bench.run.call_times import Call
from forerun_lab.bench.run.machine import last_level_cache_bytes
from forerun_lab.checks.gpu.cases import Setting
from forerun_lab.checks.gpu.models import DTYPE, Model, RandomWeights, filled_cache, pass_of

KERNELS = ("embed", "qkv", "attention", "attention_out", "gate_up", "mlp_out", "head")
LINEARS = ("qkv", "attention_out", "gate_up", "mlp_out", "head")
TIMES_CACHE = 3  # weights of a kernel that are gone round, in sizes of the last-level cache
Divided = Callable[[PassShape], list[Call]]  # a pass to the launches of one kernel
FEW_TOKENS = 1024  # a vocabulary for what does not look at it


def kernel_of(op: Op) -> str:
    """The kernel whose launch ends with this op; nothing for ops that begin one."""
    match op.kind:
        case "embed":
            return "embed"
        case "rope_append":
            return "qkv"
        case "tree_attention":
            return "attention"
        case "silu_mul":
            return "gate_up"
        case "linear_add":
            return op.weights.rpartition(".")[2]
        case "linear":
            return "head" if op.writes == "logits" else ""
        case _:
            return ""


def context_of(setting: Setting) -> int:
    """Tokens before the pass."""
    return 140 if setting.is_rehearsal else 512


def reduced(model: Model, kernel: str, setting: Setting) -> ModelSpec:
    """The model with as many layers as it takes that no cache holds this kernel's weights, or keys and values."""
    spec = model.spec
    if kernel in ("head", "embed"):
        return replace(spec, num_layers=1)
    shapes = {
        "qkv": (spec.q_size + 2 * spec.kv_size, spec.hidden_size),
        "attention_out": (spec.hidden_size, spec.q_size),
        "gate_up": (2 * spec.intermediate_size, spec.hidden_size),
        "mlp_out": (spec.hidden_size, spec.intermediate_size),
    }
    element_bytes = DTYPE.itemsize
    if kernel == "attention":
        num_bytes = 2 * context_of(setting) * spec.kv_size * element_bytes
    else:
        num_bytes = weight_bytes(shapes[kernel], model.weight_format, element_bytes)
    most = 2 if setting.is_rehearsal else 64 if kernel == "attention" else 32
    wanted = ceil(TIMES_CACHE * last_level_cache_bytes(torch.device(setting.device)) / num_bytes)
    return replace(spec, num_layers=max(2, min(most, wanted)), vocab_size=min(spec.vocab_size, FEW_TOKENS))


def trimmed(spec: ModelSpec, kernel: str) -> ModelSpec:
    """Layers of which nothing but the kernel's own weights are large, where the others do not matter to it."""
    if kernel == "attention":
        return replace(
            spec, hidden_size=min(spec.hidden_size, 1024), intermediate_size=min(spec.intermediate_size, 512)
        )
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """A device executor with random values in all that a pass reads."""

    spec: ModelSpec
    executor: DeviceExecutor
    cache: TreeCache
    setting: Setting

    @classmethod
    def make(cls, model: Model, spec: ModelSpec, setting: Setting) -> "Layers":
        cache = filled_cache(spec, context_of(setting) + 64, setting.device)
        with torch.inference_mode():
            weights = RandomWeights(spec, device=setting.device, weight_format=model.weight_format)
            executor = TRITON.executor(spec, weights, cache)
        assert isinstance(executor, DeviceExecutor)
        return cls(spec=spec, executor=executor, cache=cache, setting=setting)

    @property
    def bound(self) -> DeviceWeights:
        return self.executor.bound

    def aim(self, num_rows: int) -> PassShape:
        """Describe a pass to the kernels, and give them inputs."""
        inputs = pass_of(self.spec, num_rows, context_of(self.setting))
        shape = self.executor.aim(inputs)
        fill(self.executor.buffers)
        return shape

    def calls(self, kernel: str, shape: PassShape) -> list[Call]:
        """The kernel's launch in each layer."""
        if kernel == "head":
            return [partial(self._head, self.executor.head, shape)]
        launches = self.executor._list_for(NOTHING)
        return [partial(launch, shape) for op, launch in launches if kernel_of(op) == kernel]

    def packed(self, kernel: str) -> dict[str, DeviceLinear]:
        """The kernel's weight in each layer, by its name."""
        program = build_program(self.spec)
        if kernel == "head":
            return {program[-1].weights: self.bound.linears[program[-1].weights]}
        part = {"qkv": ".qkv", "gate_up": ".gate_up"}.get(kernel, f".{kernel}")
        return {name: packed for name, packed in self.bound.linears.items() if name.endswith(part)}

    def with_packed(self, kernel: str, changed: Mapping[str, DeviceLinear]) -> tuple[Buffers, Divided]:
        """Buffers of its own and the kernel's launches with other weights, or the same ones tiled otherwise."""
        executor = self.executor
        dtype = self.cache.keys_LSKD.dtype
        bound = replace(self.bound, linears={**self.bound.linears, **changed})
        max_splits = num_splits_for(self.cache.capacity) + 1
        buffers = Buffers(self.spec, bound, max_rows=64, max_splits=max_splits, dtype=dtype)
        fill(buffers)
        if kernel == "head":
            (head,) = changed.values()
            return buffers, lambda shape: [lambda: self._head(head, shape, buffers)]
        launches = LaunchList(
            self.spec, bound, buffers, executor.rows, self.cache, exchange=None, overlaps=executor.overlaps
        )
        built = launches.build(build_program(self.spec))
        return buffers, lambda shape: [partial(launch, shape) for op, launch in built if kernel_of(op) == kernel]

    def _head(self, head: DeviceLinear, shape: PassShape, buffers: Buffers | None = None) -> None:
        executor = self.executor
        chosen = buffers or self.executor.buffers
        norm = replace(executor.head_norm, squares=chosen.squares)
        linear(
            chosen.h, head, executor.logits_RV, num_rows=shape.num_rows, first_row=0, norm=norm,
            workspace=chosen.workspace, overlaps=executor.overlaps,
        )  # fmt: skip

    def moved_bytes(self, kernel: str, num_rows: int) -> int:
        """What one launch cannot do without: weights as stored, keys and values, what it reads and writes of rows."""
        spec = self.spec
        narrow = DTYPE.itemsize
        wide = 4
        rows = {
            "embed": spec.hidden_size * (2 * narrow + wide),
            "qkv": (spec.hidden_size + spec.q_size + 2 * spec.kv_size) * narrow,
            "attention": 2 * spec.q_size * narrow,
            "attention_out": spec.q_size * narrow + spec.hidden_size * (2 * wide + narrow),
            "gate_up": (spec.hidden_size + spec.intermediate_size) * narrow,
            "mlp_out": spec.intermediate_size * narrow + spec.hidden_size * (2 * wide + narrow),
            "head": spec.hidden_size * narrow + spec.vocab_size * wide,
        }
        fixed = 0
        if kernel == "attention":
            fixed = 2 * (context_of(self.setting) + num_rows) * spec.kv_size * narrow
        elif kernel in LINEARS:
            fixed = stored_bytes(next(iter(self.packed(kernel).values())))
        return fixed + num_rows * rows[kernel]


def stored_bytes(packed: DeviceLinear) -> int:
    return sum(part.numel() * part.element_size() for part in packed.weight if part is not None)


def fill(buffers: Buffers) -> None:
    """Random inputs for every kernel."""
    generator = torch.Generator(buffers.x.device).manual_seed(2)
    for buffer in (buffers.x, buffers.h, buffers.q, buffers.mixed, buffers.gated):
        buffer.normal_(generator=generator)
    buffers.squares.fill_(1.0)


@torch.inference_mode()
def torch_calls(spec: ModelSpec, kernel: str, num_rows: int, setting: Setting) -> list[Call]:
    """What torch does in the place of the kernel, in each layer, on plain bfloat16 weights."""
    executor = torch_executor(spec, setting)
    frame = executor._open(pass_of(spec, num_rows, context_of(setting)))
    groups: list[tuple[str, list[Callable[..., None]]]] = []
    steps: list[Callable[..., None]] = []
    for op, step in executor._untapped:
        step(frame)  # so that every buffer is there
        if op.kind in ("mask", "select_rows"):
            continue
        steps.append(step)
        if kernel_of(op):
            groups.append((kernel_of(op), steps))
            steps = []

    def run(chosen: list[Callable[..., None]]) -> None:
        for step in chosen:
            step(frame)

    return [partial(run, chosen) for name, chosen in groups if name == kernel]


@lru_cache(maxsize=1)
def torch_executor(spec: ModelSpec, setting: Setting) -> Any:
    cache = filled_cache(spec, context_of(setting) + 64, setting.device)
    return FUSED.executor(spec, RandomWeights(spec, device=setting.device), cache)
