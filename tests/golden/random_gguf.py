"""Folders of the newer families as GGUF files in float32, with the keys that llama.cpp's converter writes for them.

Source: llama.cpp, convert_hf_to_gguf.py, for keys, order of rows and what is folded into weights.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import gguf
import torch
from safetensors.torch import load_file
from torch import Tensor

from forerun.core.mixers import GatedDeltaNet, Mamba2
from forerun.core.model_spec import ModelSpec
from tests.golden.gguf_writer import add_sizes, permute

ARCHITECTURES: Final = {
    "smollm3": "SMOLLM3", "ministral3": "MISTRAL3", "granite": "GRANITE", "granitemoehybrid": "GRANITE",
    "phi3": "PHI3", "gemma3_text": "GEMMA3", "gemma4_text": "GEMMA4", "olmo2": "OLMO2", "olmo3": "OLMO2",
    "glm4": "GLM4", "gpt_oss": "GPT_OSS", "qwen3_moe": "QWEN3MOE", "qwen3_5_text": "QWEN35",
    "qwen3_5_moe_text": "QWEN35MOE", "qwen3_next": "QWEN3NEXT", "lfm2": "LFM2", "lfm2_moe": "LFM2MOE",
    "nemotron_h": "NEMOTRON_H",
}  # fmt: skip
EXPERT: Final = re.compile(r"experts\.(\d+)\.")
ONE_EXPERT_EACH: Final = ("qwen3_moe", "qwen3_5_moe_text", "qwen3_next", "lfm2_moe", "nemotron_h")
PERMUTED: Final = ("smollm3", "ministral3", "granite", "granitemoehybrid")


def write_gguf(folder: Path, path: Path, spec: ModelSpec, config: dict[str, Any]) -> Path:
    architecture = getattr(gguf.MODEL_ARCH, architecture_of(spec))
    names = gguf.get_tensor_name_map(architecture, spec.num_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    tensors = list(stored(folder, spec))
    has_head = any(name.startswith("mtp.") for name, _ in tensors)
    sized = replace(spec, num_layers=spec.num_layers + has_head)
    add_sizes(writer, sized)
    add_keys(writer, sized, config)
    if has_head:
        writer.add_uint32(f"{writer.arch}.nextn_predict_layers", 1)
    for name, values in tensors:
        if name.startswith("mtp."):
            head_name, head_values = of_draft_head(name, values, spec)
            writer.add_tensor(head_name, head_values.float().contiguous().numpy())
            continue
        own = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        writer.add_tensor(own, values.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def architecture_of(spec: ModelSpec) -> str:
    """The converter's name for a model of this family, which may depend on its layers."""
    name = ARCHITECTURES[spec.family]
    if spec.family == "granitemoehybrid" and spec.mixer_layers:
        return "GRANITE_HYBRID"
    return f"{name}_MOE" if spec.family == "nemotron_h" and spec.num_experts else name


def stored(folder: Path, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    stacked = dict[str, list[tuple[int, Tensor]]]()
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            if spec.family == "gemma3_text" and "norm" in name:
                values = values + 1.0
            if spec.family == "qwen3_next" and ".in_proj_qkvz." in name:
                yield from of_fused_net(name, values, spec)
                continue
            if spec.family == "nemotron_h":
                name = re.sub(r"backbone(.+)mixer.experts", r"model\1mlp.experts", name)
                name = name.replace("correction_bias", "correction.bias")
            if isinstance(spec.mixer, Mamba2):
                name, values = as_of_mamba(name, values, spec.mixer)
            if spec.family in PERMUTED:
                values = permute(
                    values, spec.num_heads * (".q_proj." in name) + spec.num_kv_heads * (".k_proj." in name)
                )
            if spec.family in ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"):
                name, values = as_of_delta_net(name, values, spec)
            values = values.squeeze(1) if name.endswith("conv.weight") else values
            if name.endswith("layer_scalar"):
                name = f"{name}.weight"
            if name.endswith(".expert_bias"):
                name = f"{name}.bias"
            if ".feed_forward.experts." in name:
                name = name.removeprefix("model.")
            if spec.family in ONE_EXPERT_EACH and ".experts." in name:
                stacked.setdefault(EXPERT.sub("experts.", name), []).append((int(EXPERT.search(name)[1]), values))
            elif ".experts." in name or name.endswith(".sinks"):
                yield from of_experts(name, values)
            elif "mlp.input_linear" in name or "block_sparse_moe.input_linear" in name:
                part, _, kind = name.rpartition("input_linear")
                part = {"shared_mlp.": "mlp.shared_expert." if spec.num_experts else "mlp."}.get(
                    part.rpartition("layers.")[2].partition(".")[2], "mlp.experts."
                )
                layer = name.partition(".shared_mlp.")[0].partition(".block_sparse_moe.")[0]
                gate, up = values.chunk(2, -2)
                yield f"{layer}.{part}gate_proj{kind}", gate
                yield f"{layer}.{part}up_proj{kind}", up
            else:
                shared = "mlp.shared_expert.down_proj" if spec.num_experts else "mlp.down_proj"
                yield name.replace("shared_mlp.output_linear", shared), values
    for name, experts in stacked.items():
        yield name, torch.stack([values for _, values in sorted(experts, key=itemgetter(0))])


def as_of_mamba(name: str, values: Tensor, mamba: Mamba2) -> tuple[str, Tensor]:
    """A tensor of Mamba 2 with its name and shape there."""
    match name.rpartition(".")[2], name.rpartition("norm.")[0].rpartition("layers.")[2].partition(".")[2]:
        case "A_log", _:
            values = -values.exp().reshape(-1, 1)
        case "D", _:
            values = values.reshape(-1, 1)
        case "dt_bias", _:
            name = name.replace("dt_bias", "dt_proj.bias" if "mamba." in name else "dt.bias")
        case _, "mamba." | "mixer.":
            values = values.reshape(mamba.num_key_heads, -1)
    return name, values.squeeze(1) if name.endswith("conv1d.weight") else values


def of_fused_net(name: str, values: Tensor, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    """Qwen3-Next's products with the parts of all key heads together, in place of one key head after another."""
    net = spec.mixer
    assert isinstance(net, GatedDeltaNet)
    group = net.num_value_heads // net.num_key_heads * net.value_dim
    heads = values.reshape(net.num_key_heads, -1, values.shape[1])
    q, k, v, z = (part.flatten(0, 1) for part in heads.split([net.key_dim, net.key_dim, group, group], 1))
    yield name.replace("in_proj_qkvz", "in_proj_qkv"), torch.cat((q, k, v))
    yield name.replace("in_proj_qkvz", "in_proj_z"), z


def as_of_delta_net(name: str, values: Tensor, spec: ModelSpec) -> tuple[str, Tensor]:
    """A tensor of Qwen3.5 with its name there: value heads of one key head are apart, norms hold 1 + w. Qwen3-Next's
    value heads stay together."""
    net = spec.mixer
    assert isinstance(net, GatedDeltaNet)

    def tiled(rows: Tensor, size: int) -> Tensor:
        if spec.family == "qwen3_next":
            return rows
        heads = rows.reshape(net.num_key_heads, -1, size, *rows.shape[1:])
        return heads.transpose(0, 1).reshape(rows.shape)

    first = 2 * net.key_size
    match name.rpartition("linear_attn.")[2]:
        case "in_proj_qkv.weight" | "conv1d.weight":
            values = torch.cat((values[:first], tiled(values[first:], net.value_dim))).squeeze(1)
        case "in_proj_z.weight":
            values = tiled(values, net.value_dim)
        case "in_proj_a.weight" | "in_proj_b.weight":
            values = tiled(values, 1)
        case "A_log":
            values = tiled(-values.exp(), 1)
        case "dt_bias":
            values = tiled(values, 1)
            name = name.replace("dt_bias", "dt_proj.bias")
        case "out_proj.weight":
            values = tiled(values.T, net.value_dim).T
        case _ if name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + 1.0
    return name, values


def of_draft_head(name: str, values: Tensor, spec: ModelSpec) -> tuple[str, Tensor]:
    """A tensor of Qwen3.5's own draft head, a block behind the others."""
    block = f"blk.{spec.num_layers}."
    outer = {
        "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
        "norm": "nextn.shared_head_norm",
    }  # fmt: skip
    module = name.removeprefix("mtp.").removesuffix(".weight")
    if module in outer:
        return f"{block}{outer[module]}.weight", values + 1.0 if "pre_fc" in name else values
    inner = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    return f"{block}{inner[module.removeprefix('layers.0.')]}.weight", values


def of_experts(name: str, values: Tensor) -> Iterator[tuple[str, Tensor]]:
    """gpt-oss's experts with outputs as rows, gate and up apart; and sinks."""
    if name.endswith("_bias"):
        name = name.replace("_bias", ".bias")
    elif name.endswith("_proj"):
        name = f"{name}.weight"
        values = values.transpose(1, 2)
    if "gate_up_proj" in name:
        yield name.replace("gate_up", "gate"), values[:, ::2]
        yield name.replace("gate_up", "up"), values[:, 1::2]
    else:
        yield f"{name}.weight" if name.endswith("sinks") else name, values


def add_keys(writer: Any, spec: ModelSpec, config: dict[str, Any]) -> None:
    """What this family has besides sizes."""
    rope = spec.rope
    architecture = writer.arch
    if spec.family == "nemotron_h":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_layer_norm_rms_eps(config["norm_eps" if spec.family.startswith("lfm2") else "rms_norm_eps"])
    writer.add_rope_freq_base(rope.theta)
    if spec.window is not None:
        writer.add_sliding_window(spec.window)
    if rope.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope.kind))
        writer.add_rope_scaling_factor(rope.factor)
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_positions)
    if rope.kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope.original_max_positions)
        writer.add_rope_scaling_attn_factors(rope.attention_factor)
        for name, divisors in (("short", rope.divisors), ("long", rope.long_divisors)):
            writer.add_tensor(f"rope_factors_{name}.weight", Tensor(divisors).numpy())
    match spec.family:
        case "ministral3":
            writer.add_float32("mistral3.attention.temperature_scale", rope.query_growth)
            writer.add_float32("mistral3.rope.scaling.yarn_log_multiplier", 1.0)
        case "granite" | "granitemoehybrid":
            writer.add_embedding_scale(config["embedding_multiplier"])
            writer.add_residual_scale(config["residual_multiplier"])
            writer.add_logit_scale(config["logits_scaling"])
            writer.add_attention_scale(config["attention_multiplier"])
            if isinstance(spec.mixer, Mamba2):
                add_mamba(writer, spec.mixer)
                writer.add_rope_scaling_finetuned(False)
            if spec.num_experts:
                writer.add_expert_count(spec.num_experts)
                writer.add_expert_used_count(spec.num_chosen_experts)
                writer.add_expert_shared_feed_forward_length(spec.shared_size)
        case "nemotron_h":
            add_keys_of_nemotron(writer, spec)
        case "lfm2_moe":
            assert spec.mixer is not None
            add_experts(writer, spec)
            writer.add_shortconv_l_cache(spec.mixer.kernel_size)
            writer.add_leading_dense_block_count(len(spec.dense_layers))
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_feed_forward_length(spec.dense_size or spec.intermediate_size)
        case "gemma3_text":
            assert spec.sliding_rope is not None, "sliding layers have a rotation of their own"
            writer.add_float32(f"{architecture}.rope.freq_base_swa", spec.sliding_rope.theta)
            writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
        case "gemma4_text":
            add_keys_of_gemma4(writer, spec)
        case "gpt_oss":
            add_experts(writer, spec)
            writer.add_float32(f"{architecture}.rope.scaling.yarn_beta_fast", rope.beta_fast)
        case "qwen3_moe":
            add_experts(writer, spec)
            writer.add_expert_shared_feed_forward_length(0)  # as Qwen3-Coder's files have it
        case "qwen3_5_text" | "qwen3_5_moe_text" | "qwen3_next":
            if spec.num_experts:
                add_experts(writer, spec)
                writer.add_expert_shared_feed_forward_length(spec.shared_size)
            net = spec.mixer
            assert isinstance(net, GatedDeltaNet)
            writer.add_ssm_conv_kernel(net.kernel_size)
            writer.add_ssm_state_size(net.key_dim)
            writer.add_ssm_group_count(net.num_key_heads)
            writer.add_ssm_time_step_rank(net.num_value_heads)
            writer.add_ssm_inner_size(net.value_size)
            writer.add_array(
                f"{architecture}.attention.recurrent_layers",
                [layer in spec.mixer_layers for layer in range(spec.num_layers)],
            )
            writer.add_rope_dimension_sections([11, 11, 10, 0])
        case "lfm2":
            assert spec.mixer is not None
            writer.add_shortconv_l_cache(spec.mixer.kernel_size)
        case "olmo3":
            writer.add_rope_scaling_attn_factors(rope.attention_factor)


def add_mamba(writer: Any, mamba: Mamba2) -> None:
    writer.add_ssm_conv_kernel(mamba.kernel_size)
    writer.add_ssm_state_size(mamba.key_dim)
    writer.add_ssm_group_count(mamba.num_key_heads)
    writer.add_ssm_time_step_rank(mamba.num_value_heads)
    writer.add_ssm_inner_size(mamba.value_size)


def add_keys_of_nemotron(writer: Any, spec: ModelSpec) -> None:
    """A layer without heads and without an MLP has Mamba 2."""
    assert isinstance(spec.mixer, Mamba2)
    add_mamba(writer, spec.mixer)
    sizes = [spec.intermediate_size if layer in spec.mlp_only else 0 for layer in range(spec.num_layers)]
    writer.add_feed_forward_length(sizes)
    if spec.routing is not None:
        add_experts(writer, spec)
        writer.add_expert_shared_feed_forward_length(spec.shared_size)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(spec.routing.is_normalised)
        writer.add_expert_weights_scale(spec.routing.scale)
        writer.add_expert_group_count(1)


def add_experts(writer: Any, spec: ModelSpec) -> None:
    writer.add_expert_count(spec.num_experts)
    writer.add_expert_used_count(spec.num_chosen_experts)
    writer.add_expert_feed_forward_length(spec.intermediate_size)


def add_keys_of_gemma4(writer: Any, spec: ModelSpec) -> None:
    """Sizes of full layers and of those with a window, which replace those of all layers; see `Gemma4Model` there."""
    layers = [spec.of_layer(layer) for layer in range(spec.num_layers)]
    full = spec.full_head_dim
    rope = spec.rope
    assert full is not None, "full layers have heads of their own"
    assert spec.sliding_rope is not None, "sliding layers have a rotation of their own"
    writer.add_sliding_window_pattern([layer in spec.sliding_layers for layer in range(spec.num_layers)])
    writer.add_shared_kv_layers(spec.num_borrowing_layers)
    writer.add_embedding_length_per_layer_input(spec.layer_input_size)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(full)
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(spec.head_dim)
    writer.add_rope_freq_base_swa(spec.sliding_rope.theta)
    if spec.has_wide_borrowers:
        writer.add_feed_forward_length([one.intermediate_size for one in layers])
    if spec.full_num_kv_heads != spec.num_kv_heads:
        writer.add_head_count_kv([one.num_kv_heads for one in layers])
    if spec.logit_cap is not None:
        writer.add_final_logit_softcapping(spec.logit_cap)
    num_turning = (rope.rotated_dims or full) // 2
    writer.add_tensor("rope_freqs.weight", Tensor([1.0] * num_turning + [1e30] * (full // 2 - num_turning)).numpy())
