"""Kernels with what newer families compute besides Llama, to compile, with the shapes of Gemma 3 4B, OLMo 3 7B,
Gemma 4 E2B and gpt-oss 20b.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from torch import Tensor

from forerun.backends.gpu.passes.attention import AttentionWorkspace, text_attention, tree_attention
from forerun.backends.gpu.passes.embed import embed
from forerun.backends.gpu.passes.expert_pairs import ExpertPairs, choose_experts
from forerun.backends.gpu.passes.experts import add_experts, multiply_experts
from forerun.backends.gpu.passes.layer_inputs import gate_input, layer_inputs
from forerun.backends.gpu.passes.linear import linear, linear_gate
from forerun.backends.gpu.passes.linear_buffers import InputNorm, NextNorm, NormShape, SplitWorkspace
from forerun.backends.gpu.passes.norm_add import norm_add
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack, stack
from forerun.backends.gpu.passes.qkv import qkv
from forerun.backends.gpu.passes.whole_heads import whole_heads
from forerun.core.model_spec import ModelSpec, WeightFormat
from tests.backends.gpu.compile_case import COMPUTE, DEVICE, MAX_ROWS, NUM_SLOTS, CompileCase, empty, row_table, weight

MODEL: Final = "newer families"
NUM_SPLITS: Final = 8
WINDOW: Final = 1024
GEMMA: Final = ModelSpec(
    family="gemma3_text", num_layers=34, hidden_size=2560, num_heads=8, num_kv_heads=4, head_dim=256,
    intermediate_size=10240, vocab_size=262208, max_positions=131072, norm_eps=1e-6, qk_norm=True, norms="around",
    gate="gelu_tanh", embedding_scale=50.5, attention_scale=1 / 16, window=WINDOW,
)  # fmt: skip
OLMO: Final = ModelSpec(
    family="olmo3", num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=32, head_dim=128,
    intermediate_size=11008, vocab_size=100278, max_positions=65536, norm_eps=1e-6, qk_norm_whole=True, norms="after",
)  # fmt: skip
GEMMA4: Final = ModelSpec(
    family="gemma4_text", num_layers=35, hidden_size=1536, num_heads=8, num_kv_heads=1, head_dim=256,
    intermediate_size=6144, vocab_size=262144, max_positions=131072, norm_eps=1e-6, qk_norm=True, norms="around",
    gate="gelu_tanh", attention_scale=1.0, value_norm=True, layer_scale=True, layer_input_size=256, full_head_dim=512,
)  # fmt: skip
GPT_OSS: Final = ModelSpec(
    family="gpt_oss", num_layers=24, hidden_size=2880, num_heads=64, num_kv_heads=8, head_dim=64,
    intermediate_size=2880, vocab_size=201088, max_positions=131072, norm_eps=1e-5, gate="clamped", window=128,
    attention_sinks=True, num_experts=32, num_chosen_experts=4, mlp_bias=True,
)  # fmt: skip


def mechanism_cases() -> Iterator[CompileCase]:
    """A case for each kernel that a mechanism changes or adds."""
    rows = row_table()
    x = empty(MAX_ROWS, GEMMA.hidden_size)
    h = empty(MAX_ROWS, GEMMA.hidden_size, dtype=COMPUTE)
    following = _next_norm(GEMMA)
    start = partial(
        embed, empty(GEMMA.vocab_size, GEMMA.hidden_size, dtype=COMPUTE), rows.token_ids, x, following, scale=50.5
    )
    add = partial(
        norm_add, empty(MAX_ROWS, GEMMA.hidden_size), empty(GEMMA.hidden_size), x, following, eps=1e-6,
        row_skips=rows.row_skips, sublayer=2, num_sublayers=rows.num_sublayers,
    )  # fmt: skip
    steps = {
        "embed, scaled": start, "norm_add": add, "norm_add, scaled": partial(add, scale=0.5),
        "norm_add, factor alone": partial(norm_add, None, None, x, following, eps=1e-6, scale=0.5),
        "whole_heads": _whole_heads(), **_layer_inputs(rows.token_ids),
    }  # fmt: skip
    for name, step in steps.items():
        launch = partial(_launch, partial(step, num_rows=8))
        yield CompileCase(name=name, model=MODEL, num_rows=8, launch=launch, is_product=False)
    for name, (step, packed) in _products(h).items():
        yield CompileCase(
            name=name, model=MODEL, num_rows=8, launch=partial(_launch, partial(step, num_rows=8)), packed=packed
        )
    yield from _experts()
    yield from _attention_cases(GEMMA, "window", None)
    yield from _attention_cases(replace(GEMMA4.of_layer(4), window=None), "wide heads", None)
    yield from _attention_cases(GPT_OSS, "window and sinks", empty(GPT_OSS.num_heads))


def _experts() -> Iterator[CompileCase]:
    """The experts of a layer, in bfloat16 and in int4."""
    spec = GPT_OSS
    size = GPT_OSS.hidden_size
    rows = row_table()
    pairs = ExpertPairs.for_model(spec, max_rows=MAX_ROWS, dtype=COMPUTE, device=DEVICE)
    counts = {"num_rows": 8, "num_experts": spec.num_experts}
    choose = partial(choose_experts, empty(MAX_ROWS, spec.num_experts), rows.lengths, pairs, num_rows=8, num_chosen=4)
    add = partial(
        add_experts, pairs, empty(MAX_ROWS, size), _next_norm(spec), num_chosen=4, row_skips=rows.row_skips,
        sublayer=1, num_sublayers=rows.num_sublayers, **counts,
    )  # fmt: skip
    for name, step in (("choose_experts", choose), ("add_experts", add)):
        yield CompileCase(name=name, model=MODEL, num_rows=8, launch=partial(_launch, step), is_product=False)
    formats: tuple[WeightFormat, ...] = ("plain", "int4")
    for weight_format in formats:
        gate_up = pack(
            weight(2 * spec.intermediate_size, size, weight_format), empty(2 * spec.intermediate_size),
            compute=COMPUTE, paired=True,
        )  # fmt: skip
        out = pack(weight(size, spec.intermediate_size, weight_format), empty(size), compute=COMPUTE)
        all_gates, all_outs = (stack([packed] * spec.num_experts) for packed in (gate_up, out))
        multiply = partial(
            multiply_experts, empty(MAX_ROWS, size, dtype=COMPUTE), all_gates, all_outs, pairs, norm=_input_norm(45),
            gate=spec.gate, **counts,
        )  # fmt: skip
        name = f"multiply_experts, {weight_format}"
        launch = partial(_launch, multiply)
        yield CompileCase(name=name, model=MODEL, num_rows=8, launch=launch)


def _products(h: object) -> dict[str, tuple[partial[None], DeviceLinear]]:
    """Queries with scales, products without a norm of their inputs, a tanh-GELU gate and capped logits."""
    spec = GEMMA
    size = GEMMA.hidden_size
    heads = pack(weight(spec.q_size + 2 * spec.kv_size, size, "plain"), None, compute=COMPUTE, head_dim=spec.head_dim)
    out = pack(weight(size, spec.intermediate_size, "plain"), None, compute=COMPUTE)
    gate = pack(weight(2 * spec.intermediate_size, size, "plain"), None, compute=COMPUTE, paired=True)
    head = pack(weight(spec.vocab_size, size, "plain"), None, compute=COMPUTE)
    gated = empty(MAX_ROWS, spec.intermediate_size, dtype=COMPUTE)
    rows = row_table()
    keys_SKD = empty(NUM_SLOTS, spec.num_kv_heads, spec.head_dim, dtype=COMPUTE)
    q = empty(MAX_ROWS, spec.q_size, dtype=COMPUTE)
    norm = _input_norm(1)
    no_norm = _input_norm(0)
    scaled = partial(
        qkv, h, heads, q, keys_SKD, keys_SKD, empty(NUM_SLOTS, 2, spec.head_dim), rows, spec=spec,
        head_norms=(empty(spec.head_dim), empty(spec.head_dim)), query_scales_P=empty(NUM_SLOTS), norm=norm,
    )  # fmt: skip
    wide = GEMMA4.of_layer(4)
    wide_heads = pack(
        weight(wide.q_size + 2 * wide.kv_size, wide.hidden_size, "plain"), None, compute=COMPUTE, head_dim=wide.head_dim
    )
    keys_SKD = empty(NUM_SLOTS, wide.num_kv_heads, wide.head_dim, dtype=COMPUTE)
    normed = partial(
        qkv, h, wide_heads, empty(MAX_ROWS, wide.q_size, dtype=COMPUTE), keys_SKD, keys_SKD,
        empty(NUM_SLOTS, 2, wide.head_dim), rows, spec=wide, head_norms=(empty(wide.head_dim),) * 3,
        query_scales_P=empty(NUM_SLOTS), norm=norm,
    )  # fmt: skip
    logits = partial(linear, h, head, empty(MAX_ROWS, spec.vocab_size), first_row=0, norm=_input_norm(1, cap=30.0))
    workspace = SplitWorkspace.for_linears([heads, wide_heads, out, gate, head], max_rows=MAX_ROWS, device=DEVICE)
    steps = {
        "qkv, scaled queries": (scaled, heads),
        "qkv, normed values of wide heads": (normed, wide_heads),
        "linear, branch": (partial(linear, gated, out, empty(MAX_ROWS, size), first_row=0, norm=no_norm), out),
        "linear_gate, gelu": (partial(linear_gate, h, gate, gated, gate="gelu_tanh", norm=norm), gate),
        "linear, capped": (logits, head),
    }
    return {name: (partial(step, workspace=workspace), packed) for name, (step, packed) in steps.items()}


def _layer_inputs(token_ids: Tensor) -> dict[str, partial[None]]:
    spec = GEMMA4
    size = GEMMA4.layer_input_size
    width = spec.num_layers * size
    inputs = empty(MAX_ROWS, width)
    gated = empty(MAX_ROWS, size, dtype=COMPUTE)
    table = empty(spec.vocab_size, width, dtype=COMPUTE)
    return {
        "layer_inputs": partial(
            layer_inputs, inputs, table, token_ids, empty(size), inputs, projection_scale=0.5, token_scale=16.0,
            eps=1e-6,
        ),
        "gate_input": partial(gate_input, empty(MAX_ROWS, size), inputs, gated, layer=3),
    }  # fmt: skip


def _whole_heads() -> partial[None]:
    spec = OLMO
    keys_SKD = empty(NUM_SLOTS, spec.num_kv_heads, spec.head_dim, dtype=COMPUTE)
    return partial(
        whole_heads, empty(MAX_ROWS, spec.q_size + 2 * spec.kv_size), empty(MAX_ROWS, spec.q_size, dtype=COMPUTE),
        keys_SKD, keys_SKD, empty(NUM_SLOTS, 2, spec.head_dim), row_table(), spec=spec,
        norms=(empty(spec.q_size), empty(spec.kv_size)), query_scales_P=None,
    )  # fmt: skip


def _attention_cases(spec: ModelSpec, name: str, sinks_Q: Tensor | None) -> Iterator[CompileCase]:
    rows = row_table()
    window = spec.window or 0
    keys_SKD = empty(NUM_SLOTS, spec.num_kv_heads, spec.head_dim, dtype=COMPUTE)
    q, mixed = (empty(MAX_ROWS, spec.q_size, dtype=COMPUTE) for _ in range(2))
    workspace = AttentionWorkspace.for_heads(
        max_rows=MAX_ROWS, num_heads=spec.num_heads, head_dim=spec.head_dim, max_splits=65, device=DEVICE
    )
    text = partial(
        text_attention, q, keys_SKD, keys_SKD, mixed, rows, num_heads=spec.num_heads, window=window, sinks_Q=sinks_Q
    )
    tree = partial(
        tree_attention, q, keys_SKD, keys_SKD, mixed, rows, num_heads=spec.num_heads, num_splits=NUM_SPLITS,
        workspace=workspace, is_settled=True, window=window, sinks_Q=sinks_Q,
    )  # fmt: skip
    for step, num_rows in ((tree, 1), (tree, 8), (text, MAX_ROWS)):
        launch = partial(_launch, partial(step, num_rows=num_rows))
        yield CompileCase(name=f"{step.func.__name__}, {name}", model=MODEL, num_rows=num_rows, launch=launch)


def _launch(step: partial[None], overlaps: bool) -> None:
    step(overlaps=overlaps)


def _input_norm(num_parts: int, cap: float = 0.0) -> InputNorm:
    shape = NormShape(num_parts=num_parts, size=GEMMA.hidden_size, eps=GEMMA.norm_eps, cap=cap)
    return InputNorm(squares=empty(1, MAX_ROWS), shape=shape, scale=1.0)


def _next_norm(spec: ModelSpec) -> NextNorm:
    h = empty(MAX_ROWS, spec.hidden_size, dtype=COMPUTE)
    return NextNorm(weight=empty(spec.hidden_size), h=h, squares=empty(1, MAX_ROWS), scale=1.0)
