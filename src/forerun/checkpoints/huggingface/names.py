"""The table of Hugging Face tensor names and their places in our weights."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.safetensors.header import ITEM_BYTES, StoredTensor
from forerun.core.mixers import GatedDeltaNet, Mamba2, ShortConvolution
from forerun.core.model_spec import ModelSpec

EMBEDDING_NAME: Final = "model.embed_tokens.weight"
LAYER_TABLE_NAME: Final = "model.embed_tokens_per_layer.weight"
HEAD_NAME: Final = "lm_head.weight"
MAX_LISTED: Final = 3
LEFTOVER: Final = re.compile(r".*\.rotary_emb\.inv_freq|mtp\..+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """One stored tensor's place: rows [row_start, row_start + shape[0]) of the weight `name`.

    `shape` is the required shape of the stored tensor, `dtypes` are the dtypes allowed. A bias counts as rows of one
    element.
    """

    name: str
    shape: tuple[int, ...]
    row_start: int = 0
    dtypes: tuple[str, ...] = tuple(ITEM_BYTES)


def tensor_plan(spec: ModelSpec) -> dict[str, TensorPlace]:
    """Every tensor that the checkpoint must hold, by its Hugging Face name, and its place.

    Query, key and value become one matrix, and so do gate and up, so that each is one multiplication.
    """
    vocab_shape = (spec.vocab_size, spec.hidden_size)
    plan = {
        EMBEDDING_NAME: TensorPlace(name="embedding.weight", shape=vocab_shape),
        "model.norm.weight": TensorPlace(name="final_norm.weight", shape=(spec.hidden_size,)),
    }
    if not spec.tied_embeddings:
        plan[HEAD_NAME] = TensorPlace(name="head.weight", shape=vocab_shape)
    if spec.layer_input_size:
        width = spec.num_layers * spec.layer_input_size
        plan[LAYER_TABLE_NAME] = TensorPlace(name="layer_table.weight", shape=(spec.vocab_size, width))
        for name, own, shape in (
            ("per_layer_model_projection", "layer_inputs", (width, spec.hidden_size)),
            ("per_layer_projection_norm", "layer_inputs_norm", (spec.layer_input_size,)),
        ):
            plan[f"model.{name}.weight"] = TensorPlace(name=f"{own}.weight", shape=shape)
    for layer_idx in range(spec.num_layers):
        for suffix, place in _layer_plan(spec, layer_idx):
            name = f"layers.{layer_idx}.{place.name}"
            plan[f"model.layers.{layer_idx}.{suffix}"] = TensorPlace(
                name=name, shape=place.shape, row_start=place.row_start
            )
    return plan


def fused_shapes(plan: Mapping[str, TensorPlace]) -> dict[str, tuple[int, ...]]:
    """The shape of every weight the plan fills, by our name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for place in plan.values():
        num_rows = max(place.row_start + place.shape[0], shapes.get(place.name, (0,))[0])
        shapes[place.name] = (num_rows, *place.shape[1:])
    return shapes


def by_weight(plan: Mapping[str, TensorPlace], stored: Mapping[str, StoredTensor]) -> dict[str, list[StoredTensor]]:
    """The stored tensors of every weight, in the order of their rows, which is the plan's order."""
    parts: dict[str, list[StoredTensor]] = {}
    for name, place in plan.items():
        parts.setdefault(place.name, []).append(stored[name])
    return parts


def listed(names: Sequence[str]) -> str:
    """The first of these names, quoted, and the number of the others."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(map(repr, names[:MAX_LISTED])) + more


def is_ignorable(hf_name: str) -> bool:
    """Whether a stored tensor outside the plan is not needed: rotary frequencies of old exports, which we compute, or a
    draft head."""
    return LEFTOVER.fullmatch(hf_name) is not None


def fused_of(spec: ModelSpec) -> Mapping[str, Sequence[str]]:
    """The modules that a folder stores as one, with their parts in the order of their rows."""
    family = BY_NAME[spec.family]
    fused = {**family.fused, "self_attn.q_proj": gated_heads(spec, "self_attn.q_proj")}
    if family.fuses_nets and isinstance(spec.mixer, GatedDeltaNet):
        heads = range(spec.mixer.num_key_heads)
        for module, parts in (("in_proj_qkvz", "qkvz"), ("in_proj_ba", "ba")):
            fused[f"linear_attn.{module}"] = [f"linear_attn.{part}.{head}" for head in heads for part in parts]
    return fused


def gated_heads(spec: ModelSpec, queries: str) -> tuple[str, ...]:
    """The modules of each query head and its gate, in the order in which one tensor holds them; empty without gates."""
    heads = range(spec.num_heads if spec.gates_attention else 0)
    return tuple(f"{module}.{head}" for head in heads for module in (queries, f"{queries}_gate"))


def _layer_plan(whole: ModelSpec, layer: int) -> Iterator[tuple[str, TensorPlace]]:
    """One layer: Hugging Face suffix and place, both relative to the layer."""
    spec = whole.of_layer(layer)
    has_mixer = layer not in spec.mlp_only
    has_mlp = layer not in spec.mixer_only
    hidden = spec.hidden_size
    if spec.layer_scale:
        yield "layer_scalar", TensorPlace(name="layer_scale.weight", shape=(1,))
    for name, stored in BY_NAME[spec.family].norms.items():
        if has_mlp if name.startswith("mlp") else has_mixer:
            yield f"{stored}.weight", TensorPlace(name=f"{name}.weight", shape=(hidden,))
    match spec.mixer_of(layer):
        case None if has_mixer:
            yield from _attention(spec, borrows=whole.borrows(layer))
        case ShortConvolution() as mixer:
            yield from _convolution(mixer, hidden)
        case GatedDeltaNet() as mixer:
            yield from _delta_net(mixer, hidden, is_fused=BY_NAME[spec.family].fuses_nets)
        case Mamba2() as mixer:
            yield from _mamba(mixer, hidden)
    if size := spec.layer_input_size:
        yield from _linear("per_layer_input_gate", "layer_input_gate", (size, hidden), False)
        yield from _linear("per_layer_projection", "layer_input_out", (hidden, size), False)
        yield "post_per_layer_input_norm.weight", TensorPlace(name="layer_input_post_norm.weight", shape=(hidden,))
    if has_mlp and spec.num_experts:
        yield from _experts(spec)
    elif has_mlp:
        yield from _mlp(spec, "mlp", "gate_up", "mlp_out")


def _attention(spec: ModelSpec, *, borrows: bool) -> Iterator[tuple[str, TensorPlace]]:
    hidden = spec.hidden_size
    q_size = spec.q_size
    kv_size = spec.kv_size
    if spec.gates_attention:
        for module in gated_heads(spec, "self_attn.q_proj"):
            name = "attention_gate" if "_gate." in module else "qkv"
            head = int(module.rpartition(".")[2])
            shape = (spec.head_dim, hidden)
            yield from _linear(module, name, shape, spec.qkv_bias, row_start=head * spec.head_dim)
    else:
        yield from _linear("self_attn.q_proj", "qkv", (q_size, hidden), spec.qkv_bias)
    if not borrows:
        yield from _linear("self_attn.k_proj", "qkv", (kv_size, hidden), spec.qkv_bias, row_start=q_size)
        yield from _linear("self_attn.v_proj", "qkv", (kv_size, hidden), spec.qkv_bias, row_start=q_size + kv_size)
    yield from _linear("self_attn.o_proj", "attention_out", (hidden, q_size), spec.out_bias)
    if spec.attention_sinks:
        yield "self_attn.sinks", TensorPlace(name="sinks.weight", shape=(spec.num_heads,))
    if spec.qk_norm or spec.qk_norm_whole:
        num_q, num_k = (q_size, kv_size) if spec.qk_norm_whole else (spec.head_dim, spec.head_dim)
        yield "self_attn.q_norm.weight", TensorPlace(name="q_norm.weight", shape=(num_q,))
        if not borrows:
            yield "self_attn.k_norm.weight", TensorPlace(name="k_norm.weight", shape=(num_k,))


def _convolution(mixer: ShortConvolution, hidden: int) -> Iterator[tuple[str, TensorPlace]]:
    yield from _linear("conv.in_proj", "mixer_in", (mixer.in_size, hidden), mixer.has_bias)
    yield from _linear("conv.out_proj", "attention_out", (hidden, mixer.out_size), mixer.has_bias)
    taps = (mixer.num_channels, 1, mixer.kernel_size)
    yield "conv.conv.weight", TensorPlace(name="convolution.weight", shape=taps)
    if mixer.has_bias:
        yield "conv.conv.bias", TensorPlace(name="convolution_bias.weight", shape=taps[:1])


def _delta_net(net: GatedDeltaNet, hidden: int, *, is_fused: bool) -> Iterator[tuple[str, TensorPlace]]:
    modules = [
        ("in_proj_qkv", net.num_channels),
        ("in_proj_z", net.value_size),
        ("in_proj_b", net.num_value_heads),
        ("in_proj_a", net.num_value_heads),
    ]
    if is_fused:
        group = net.num_value_heads // net.num_key_heads
        sizes = {"q": net.key_dim, "k": net.key_dim, "v": group * net.value_dim, "z": group * net.value_dim}
        parts = sizes | {"b": group, "a": group}
        modules = [(f"{part}.{head}", size) for part, size in parts.items() for head in range(net.num_key_heads)]
    first = 0
    for module, size in modules:
        yield from _linear(f"linear_attn.{module}", "mixer_in", (size, hidden), False, row_start=first)
        first += size
    yield from _linear("linear_attn.out_proj", "attention_out", (hidden, net.out_size), False)
    for stored, name, shape in (
        ("conv1d.weight", "convolution", (net.num_channels, 1, net.kernel_size)),
        ("A_log", "delta_net_rates", (net.num_value_heads,)),
        ("dt_bias", "delta_net_bias", (net.num_value_heads,)),
        ("norm.weight", "delta_net_scale", (net.value_dim,)),
    ):
        yield f"linear_attn.{stored}", TensorPlace(name=f"{name}.weight", shape=shape)


def _mamba(mamba: Mamba2, hidden: int) -> Iterator[tuple[str, TensorPlace]]:
    yield from _linear("mamba.in_proj", "mixer_in", (mamba.in_size, hidden), mamba.has_product_bias)
    yield from _linear("mamba.out_proj", "attention_out", (hidden, mamba.out_size), mamba.has_product_bias)
    for stored, name, shape in (
        ("conv1d.weight", "convolution", (mamba.num_channels, 1, mamba.kernel_size)),
        ("A_log", "mamba_rates", (mamba.num_value_heads,)),
        ("dt_bias", "mamba_bias", (mamba.num_value_heads,)),
        ("D", "mamba_skips", (mamba.num_value_heads,)),
        ("norm.weight", "mamba_scale", (mamba.value_size,)),
    ):
        yield f"mamba.{stored}", TensorPlace(name=f"{name}.weight", shape=shape)
    if mamba.has_bias:
        yield "mamba.conv1d.bias", TensorPlace(name="convolution_bias.weight", shape=(mamba.num_channels,))


def _experts(spec: ModelSpec) -> Iterator[tuple[str, TensorPlace]]:
    hidden = spec.hidden_size
    yield from _linear("mlp.router", "router", (spec.num_experts, hidden), spec.mlp_bias)
    if spec.routing is not None and spec.routing.has_correction:
        yield "mlp.router_correction", TensorPlace(name="router_correction.weight", shape=(spec.num_experts,))
    for expert in range(spec.num_experts):
        yield from _mlp(spec, f"mlp.experts.{expert}", f"experts.{expert}.gate_up", f"experts.{expert}.out")
    if spec.shared_size:
        shared = replace(spec, intermediate_size=spec.shared_size)
        yield from _mlp(shared, BY_NAME[spec.family].shared_expert, "shared_gate_up", "shared_out")
        if spec.gates_shared:
            yield from _linear("mlp.shared_expert_gate", "shared_gate", (1, hidden), False)


def _mlp(spec: ModelSpec, hf_name: str, gate_up: str, out: str) -> Iterator[tuple[str, TensorPlace]]:
    hidden = spec.hidden_size
    inner = spec.intermediate_size
    for place, module in enumerate(("gate_proj", "up_proj")[-spec.num_first_products :]):
        yield from _linear(f"{hf_name}.{module}", gate_up, (inner, hidden), spec.mlp_bias, row_start=place * inner)
    yield from _linear(f"{hf_name}.down_proj", out, (hidden, inner), spec.mlp_bias)


def _linear(
    hf_name: str, name: str, shape: tuple[int, int], has_bias: bool, *, row_start: int = 0
) -> Iterator[tuple[str, TensorPlace]]:
    yield f"{hf_name}.weight", TensorPlace(name=f"{name}.weight", shape=shape, row_start=row_start)
    if has_bias:
        yield f"{hf_name}.bias", TensorPlace(name=f"{name}.bias", shape=shape[:1], row_start=row_start)
