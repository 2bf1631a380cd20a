"""Models of real shapes with random weights, each made on the device when it is asked for.

Legend: V vocabulary, H hidden size, O outputs, I inputs, G groups.
"""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.names import fused_shapes, tensor_plan
from forerun.core.model_spec import ModelSpec, RopeSpec, WeightFormat
from forerun.model.executor import ForwardInput
from forerun.model.quantise import group_size_of, output_format
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import WHOLE, DenseWeight, Int4Weight, Int8Weight, Part, Weight
from forerun.speculation.tree import ancestry_matrix
from forerun_lab.checks.gpu.cases import Setting

DTYPE = torch.bfloat16
ROWS = (1, 8, 16, 32)
REHEARSED_ROWS = (1, 18)

LLAMA_8B = ModelSpec(
    family="llama", num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128,
    intermediate_size=14336, vocab_size=128256, max_positions=131072, norm_eps=1e-5, rope=RopeSpec(theta=500_000.0),
)  # fmt: skip
LLAMA_1B = ModelSpec(
    family="llama", num_layers=16, hidden_size=2048, num_heads=32, num_kv_heads=8, head_dim=64,
    intermediate_size=8192, vocab_size=128256, max_positions=131072, norm_eps=1e-5, tied_embeddings=True,
    rope=RopeSpec(theta=500_000.0),
)  # fmt: skip
LLAMA_70B = replace(LLAMA_8B, num_layers=80, hidden_size=8192, num_heads=64, intermediate_size=28672)
QWEN2_7B = ModelSpec(
    family="qwen2", num_layers=28, hidden_size=3584, num_heads=28, num_kv_heads=4, head_dim=128,
    intermediate_size=18944, vocab_size=152064, max_positions=32768, norm_eps=1e-6, qkv_bias=True,
    rope=RopeSpec(theta=1_000_000.0),
)  # fmt: skip
TINY = ModelSpec(
    family="llama", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16,
    intermediate_size=96, vocab_size=160, max_positions=4096, norm_eps=1e-5,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A shape and how its weights are stored."""

    name: str
    spec: ModelSpec
    weight_format: WeightFormat

    def __str__(self) -> str:
        return f"{self.name} {'bf16' if self.weight_format == 'plain' else self.weight_format}"


def models(setting: Setting, *wanted: str) -> list[Model]:
    """The named models in the named formats ("8b int4"); tiny ones instead in a rehearsal."""
    found = []
    for name, form in (entry.split() for entry in wanted):
        weight_format: WeightFormat = "int4" if form == "int4" else "int8" if form == "int8" else "plain"
        found.append(Model(name=name, spec=spec_of(name, setting), weight_format=weight_format))
    return [*found[:1], *found[-1:]] if setting.is_rehearsal and len(found) > 2 else found


def spec_of(name: str, setting: Setting) -> ModelSpec:
    real = {"1b": LLAMA_1B, "8b": LLAMA_8B, "70b": LLAMA_70B, "qwen2-7b": QWEN2_7B}[name]
    if not setting.is_rehearsal:
        return real
    return replace(TINY, family=real.family, qkv_bias=real.qkv_bias, tied_embeddings=real.tied_embeddings)


def rows_of(setting: Setting) -> tuple[int, ...]:
    """Numbers of rows of a pass."""
    return REHEARSED_ROWS if setting.is_rehearsal else ROWS


class RandomWeights:
    """A WeightSource: a weight is made when it is asked for. Quantised ones are those of `quantise_at_random`."""

    def __init__(
        self, spec: ModelSpec, *, device: str, weight_format: WeightFormat = "plain", dtype: torch.dtype = DTYPE,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self._shapes = fused_shapes(tensor_plan(spec))
        self._device = device
        self._dtype = dtype
        self._format = weight_format
        self._generator = torch.Generator(device).manual_seed(seed)
        self._table = DenseWeight(values_OI=self._make("embedding.weight"))

    def table(self) -> DenseWeight:
        return self._table

    def vector(self, name: str) -> Tensor:
        return self._make(f"{name}.weight")

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        is_shared = f"{name}.weight" not in self._shapes
        form = self._format
        if name == "head":
            form = output_format(form)
        bias_O = self._make(f"{name}.bias") if f"{name}.bias" in self._shapes else None
        if form == "plain":
            return self._table if is_shared else DenseWeight(values_OI=self._make(f"{name}.weight")), bias_O
        shape = self._shapes["embedding.weight" if is_shared else f"{name}.weight"]
        return quantise_at_random(torch.empty(shape, device="meta", dtype=self._dtype), form, self._device), bias_O

    def tensors(self) -> dict[str, Tensor]:
        """All of them at once, dense."""
        return {name: self._make(name) for name in self._shapes}

    def _make(self, name: str) -> Tensor:
        """Sizes that keep the residual stream and the logits at a few units."""
        shape = self._shapes[name]
        values = torch.empty(shape, device=self._device, dtype=self._dtype)
        values.normal_(generator=self._generator)
        if name.endswith("norm.weight"):
            return values.mul_(0.1).add_(1.0)
        return values.mul_(shape[-1] ** -0.5)


def quantise_at_random(weight_OI: Tensor, weight_format: WeightFormat, device: str) -> Weight:
    """A weight of this shape, of the usual size; a quantised one whatever the values are: quick, and as large."""
    num_out, num_in = weight_OI.shape
    match weight_format:
        case "plain":
            return DenseWeight(values_OI=weight_OI)
        case "int8":
            return Int8Weight(
                values_OI=torch.randint(-127, 128, (num_out, num_in), dtype=torch.int8, device=device),
                scales_O=torch.full((num_out,), num_in**-0.5 / 73.0, device=device),
                dtype=weight_OI.dtype,
            )
        case "int4":
            group_size = group_size_of(num_in)
            num_groups = -(-num_in // group_size)
            return Int4Weight(
                values_OI=torch.randint(0, 16, (num_out, num_in), dtype=torch.uint8, device=device),
                scales_OG=torch.full((num_out, num_groups), num_in**-0.5 / 4.6, device=device),
                zeros_OG=torch.randint(7, 10, (num_out, num_groups), dtype=torch.uint8, device=device),
                group_size=group_size,
                dtype=weight_OI.dtype,
            )


def filled_cache(spec: ModelSpec, capacity: int, device: str, dtype: torch.dtype = DTYPE) -> TreeCache:
    """A cache of random keys and values."""
    cache = TreeCache(spec, capacity, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(1)
    cache.keys_LSKD.normal_(generator=generator)
    cache.values_LSKD.normal_(generator=generator)
    return cache


def pass_of(spec: ModelSpec, num_rows: int, context: int, *, num_logit_rows: int | None = None) -> ForwardInput:
    """A binary tree of rows behind a text; one row is plain decoding."""
    parents = [(node - 1) // 2 for node in range(num_rows)]
    parents[0] = -1
    ancestry = ancestry_matrix(parents)
    rng = random.Random(num_rows)
    return ForwardInput(
        token_ids=[rng.randrange(spec.vocab_size) for _ in range(num_rows)],
        positions=[context + int(row.sum()) - 1 for row in ancestry],
        first_slot=context,
        prefix_len=context,
        ancestry=ancestry if num_rows > 1 else None,
        num_logit_rows=num_rows if num_logit_rows is None else num_logit_rows,
    )
