"""The place of every tensor of a GGUF file: ggml's names for the tensors of the Hugging Face layout.

Source: llama.cpp (gguf-py/gguf/tensor_mapping.py, convert_hf_to_gguf.py).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Final

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.gguf.config import DIVISORS_NAMES, EMBEDDING_NAME, HEAD_NAME
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.huggingface import names as huggingface_names
from forerun.checkpoints.huggingface.names import TensorPlace, gated_heads, tensor_plan
from forerun.checkpoints.huggingface.plain_names import rows_of, split, values_from_keys
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.mixers import GatedDeltaNet
from forerun.core.model_spec import ModelSpec

if TYPE_CHECKING:
    from forerun.checkpoints.stored_weights import Traits

OUTER: Final = {
    huggingface_names.EMBEDDING_NAME: EMBEDDING_NAME,
    huggingface_names.HEAD_NAME: HEAD_NAME,
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
IN_LAYERS: Final = {
    "model.layers.": "blk.",
    "self_attn.q_proj.": "attn_q.",
    "self_attn.k_proj.": "attn_k.",
    "self_attn.v_proj.": "attn_v.",
    "self_attn.o_proj.": "attn_output.",
    "self_attn.q_norm.": "attn_q_norm.",
    "self_attn.k_norm.": "attn_k_norm.",
    "mlp.gate_proj.": "ffn_gate.",
    "mlp.up_proj.": "ffn_up.",
    "mlp.down_proj.": "ffn_down.",
    "mlp.router.": "ffn_gate_inp.",
    "mlp.router_correction": "exp_probs_b.bias",
    "mlp.shared_expert.gate_proj.": "ffn_gate_shexp.",
    "mlp.shared_expert.up_proj.": "ffn_up_shexp.",
    "mlp.shared_expert.down_proj.": "ffn_down_shexp.",
    "mlp.shared_expert_gate.": "ffn_gate_inp_shexp.",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_proj_gate.": "attn_q_gate.",
}
MIXERS: Final = {
    "linear_attn.in_proj_qkv.": "attn_qkv.",
    "linear_attn.in_proj_z.": "attn_gate.",
    "linear_attn.in_proj_b.": "ssm_beta.",
    "linear_attn.in_proj_a.": "ssm_alpha.",
    "linear_attn.out_proj.": "ssm_out.",
    "linear_attn.conv1d.": "ssm_conv1d.",
    "linear_attn.norm.": "ssm_norm.",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "mamba.in_proj.": "ssm_in.",
    "mamba.out_proj.": "ssm_out.",
    "mamba.conv1d.": "ssm_conv1d.",
    "mamba.norm.": "ssm_norm.",
    "mamba.A_log": "ssm_a",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.D": "ssm_d",
    "conv.in_proj.": "shortconv.in_proj.",
    "conv.out_proj.": "shortconv.out_proj.",
    "conv.conv.": "shortconv.conv.",
}
LAYER_INPUTS: Final = {
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.": "inp_gate.",
    "per_layer_projection.": "proj.",
    "post_per_layer_input_norm.": "post_norm.",
}
FINAL_NORM: Final = "model.norm.weight"
UNUSED_OF_BORROWERS: Final = ("attn_k", "attn_v", "attn_k_norm")
# Vectors that files store as matrices, and a row that some store as a vector.
RESHAPED: Final = re.compile(r"blk\.\d+\.(ssm_a|ssm_d|ssm_norm\.weight|ffn_gate_inp_shexp\.weight)")
EXPERTS: Final = re.compile(r"(?P<weight>blk\.\d+\.ffn_\w+_exps)\.(?P<kind>weight|bias)")
EXPERT: Final = re.compile(r"mlp\.experts\.(?P<expert>\d+)\.(?P<weight>gate|up|down)_proj\.")
LEFTOVER: Final = ".attn_rot_embd.weight"  # rotary frequencies from early converters; we compute them
BLOCK: Final = re.compile(r"blk\.(?P<layer>\d+)\.")
LAYER: Final = re.compile(r"layers\.(?P<layer>\d+)\.(?P<module>\w+)\.weight")  # a name of ours


def gguf_plan(spec: ModelSpec) -> dict[str, TensorPlace]:
    """Every tensor that the file must hold, by its name in the file, and its place."""
    plan = tensor_plan(spec)
    return {gguf_name(name, place, spec): replace(place, shape=gguf_shape(place)) for name, place in plan.items()}


def gguf_shape(place: TensorPlace) -> tuple[int, ...]:
    """The shape of a tensor; a convolution's has no dimension of size 1."""
    return place.shape if len(place.shape) < 3 else (place.shape[0], place.shape[2])


def gguf_name(name: str, place: TensorPlace, spec: ModelSpec) -> str:
    """ggml's name for a tensor of the Hugging Face layout."""
    own = LAYER.fullmatch(place.name)
    norms = BY_NAME[spec.family].gguf_norms
    if own is not None and own["module"] in norms:
        return f"blk.{own['layer']}.{norms[own['module']]}.weight"
    if name == FINAL_NORM:
        return f"{BY_NAME[spec.family].gguf_final_norm}.weight"
    if ".shared_" in place.name:
        name = name.replace(f"{BY_NAME[spec.family].shared_expert}.", "mlp.shared_expert.")
    name = EXPERT.sub(r"ffn_\g<weight>_exps.\g<expert>.", name)
    for part, replacement in OUTER.items() if name in OUTER else (IN_LAYERS | LAYER_INPUTS | MIXERS).items():
        name = name.replace(part, replacement)
    return name


def model_tensors(file: GgufFile, spec: ModelSpec) -> dict[str, StoredTensor]:
    """The file's tensors by name, fused ones in parts."""
    plan = gguf_plan(spec)
    family = BY_NAME[spec.family]
    named = dict[str, StoredTensor]()
    unused = {
        f"blk.{layer}.{module}.weight"
        for layer in filter(spec.borrows, range(spec.num_layers))
        for module in UNUSED_OF_BORROWERS
    }
    fused = {**family.gguf_fused, "attn_q": gated_heads(spec, "attn_q"), **fused_nets(spec)}
    for name, tensor in file.tensors.items():
        if name not in unused and not is_of_draft_head(name, spec):
            shape = plan[name].shape if name in plan and RESHAPED.fullmatch(name) else tensor.shape
            if prod(shape) == prod(tensor.shape):
                tensor = replace(tensor, shape=shape)
            for part in experts_of(name, tensor, spec):
                named |= split(part.name, part, fused, plan)
    return named | values_from_keys(named, plan, "attn_v", "attn_k") if family.keys_are_values else named


def fused_nets(spec: ModelSpec) -> dict[str, list[str]]:
    """The parts of the tensors of gated delta nets in the order of their rows, where a folder stores them in another
    order than files (`Family.fuses_nets`)."""
    if not BY_NAME[spec.family].fuses_nets or not isinstance(spec.mixer, GatedDeltaNet):
        return {}
    heads = range(spec.mixer.num_key_heads)
    return {
        "attn_qkv": [f"linear_attn.{part}.{head}" for part in "qkv" for head in heads],
        "attn_gate": [f"linear_attn.z.{head}" for head in heads],
        "ssm_ba": [f"linear_attn.{part}.{head}" for head in heads for part in "ba"],
        "ssm_in": [f"linear_attn.{part}.{head}" for head in heads for part in "qkvz"],  # of early files
    }


def is_of_draft_head(name: str, spec: ModelSpec) -> bool:
    """Whether a tensor is of the draft head behind the layers, which is not read."""
    block = BLOCK.match(name)
    has_head = "nextn_predict_layers" in BY_NAME[spec.family].gguf_keys
    return has_head and block is not None and int(block["layer"]) >= spec.num_layers


def experts_of(name: str, tensor: StoredTensor, spec: ModelSpec) -> Iterator[StoredTensor]:
    """Divide a tensor with a weight of all experts of a layer into one for each expert, gate and up separately; other
    tensors stay as they are."""
    found = EXPERTS.fullmatch(name)
    count = spec.num_experts
    if found is None or not tensor.shape or tensor.shape[0] != count:
        yield tensor
        return
    num_bytes = tensor.num_bytes // count
    for expert in range(count):
        names = [f"{weight}.{expert}.{found['kind']}" for weight in weights_of(found["weight"])]
        own = replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + expert * num_bytes, num_bytes=num_bytes)
        yield from rows_of(own, names, [own.shape[0] // len(names)] * len(names))


def weights_of(name: str) -> tuple[str, ...]:
    """The weights in a tensor of experts: newer converters can write gate and up as one."""
    if not name.endswith("ffn_gate_up_exps"):
        return (name,)
    return name.replace("gate_up", "gate"), name.replace("gate_up", "up")


def is_ignorable(name: str) -> bool:
    """Whether a tensor outside the plan is redundant, or read with the metadata."""
    return name in DIVISORS_NAMES or name.endswith(LEFTOVER)


def traits_of(spec: ModelSpec) -> "Traits":
    """How a file's tensors differ from the model's weights."""
    from forerun.checkpoints.huggingface.load import stored_order  # imports torch, as does this
    from forerun.checkpoints.stored_weights import Traits

    order = stored_order(spec, is_interleaved=BY_NAME[spec.family].gguf_rotates_pairs)
    return Traits(is_wide=spec.wide_norms, head_order=order, head_dim=spec.head_dim)
