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

from forerun.core.mixers import GatedDeltaNet
from forerun.core.model_spec import ModelSpec
from tests.golden.gguf_writer import add_sizes, permute

ARCHITECTURES: Final = {
    "smollm3": "SMOLLM3", "ministral3": "MISTRAL3", "granite": "GRANITE", "granitemoehybrid": "GRANITE",
    "phi3": "PHI3", "gemma3_text": "GEMMA3", "gemma4_text": "GEMMA4", "olmo2": "OLMO2", "olmo3": "OLMO2",
    "glm4": "GLM4", "gpt_oss": "GPT_OSS", "qwen3_moe": "QWEN3MOE", "qwen3_5_text": "QWEN35",
    "qwen3_5_moe_text": "QWEN35MOE", "lfm2": "LFM2",
}  # fmt: skip
EXPERT: Final = re.compile(r"experts\.(\d+)\.")
PERMUTED: Final = ("smollm3", "ministral3", "granite", "granitemoehybrid")


def write_gguf(folder: Path, path: Path, spec: ModelSpec, config: dict[str, Any]) -> Path:
    architecture = getattr(gguf.MODEL_ARCH, ARCHITECTURES[spec.family])
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


def stored(folder: Path, spec: ModelSpec) -> Iterator[tuple[str, Tensor]]:
    stacked = dict[str, list[tuple[int, Tensor]]]()
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            if spec.family == "gemma3_text" and "norm" in name:
                values = values + 1.0
            if spec.family in PERMUTED:
                values = permute(
                    values, spec.num_heads * (".q_proj." in name) + spec.num_kv_heads * (".k_proj." in name)
                )
            if spec.family in ("qwen3_5_text", "qwen3_5_moe_text"):
                name, values = as_of_delta_net(name, values, spec)
            values = values.squeeze(1) if name.endswith("conv.weight") else values
            if name.endswith("layer_scalar"):
                name = f"{name}.weight"
            if spec.family in ("qwen3_moe", "qwen3_5_moe_text") and ".experts." in name:
                stacked.setdefault(EXPERT.sub("experts.", name), []).append((int(EXPERT.search(name)[1]), values))
            elif ".experts." in name or name.endswith(".sinks"):
                yield from of_experts(name, values)
            elif "shared_mlp.input_linear" in name:
                gate, up = values.chunk(2)
                yield name.replace("shared_mlp.input_linear", "mlp.gate_proj"), gate
                yield name.replace("shared_mlp.input_linear", "mlp.up_proj"), up
            else:
                yield name.replace("shared_mlp.output_linear", "mlp.down_proj"), values
    for name, experts in stacked.items():
        yield name, torch.stack([values for _, values in sorted(experts, key=itemgetter(0))])


def as_of_delta_net(name: str, values: Tensor, spec: ModelSpec) -> tuple[str, Tensor]:
    """A tensor of Qwen3.5 with its name there: value heads of one key head are apart, norms hold 1 + w."""
    net = spec.mixer
    assert isinstance(net, GatedDeltaNet)

    def tiled(rows: Tensor, size: int) -> Tensor:
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
    writer.add_layer_norm_rms_eps(config["norm_eps" if spec.family == "lfm2" else "rms_norm_eps"])
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
        case "qwen3_5_text" | "qwen3_5_moe_text":
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
