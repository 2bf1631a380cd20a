"""A training state to two Hugging Face folders: bfloat16 safetensors, config, tokenizer."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun_lab.training.dataset import END_OF_TEXT
from forerun_lab.training.network import Shape
from forerun_lab.training.train import DRAFT, TARGET

NAMES = {
    "attention_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "q.weight": "self_attn.q_proj.weight",
    "k.weight": "self_attn.k_proj.weight",
    "v.weight": "self_attn.v_proj.weight",
    "o.weight": "self_attn.o_proj.weight",
    "gate.weight": "mlp.gate_proj.weight",
    "up.weight": "mlp.up_proj.weight",
    "down.weight": "mlp.down_proj.weight",
}


def export(folder: Path, destination: Path) -> None:
    """Write `destination`/target, `destination`/draft and the held-out prompts."""
    state = torch.load(folder / "state.pt", weights_only=True)
    for side, shape in (("target", TARGET), ("draft", DRAFT)):
        place = destination / side
        place.mkdir(parents=True, exist_ok=True)
        save_file(hugging_face_tensors(state[side]["network"]), place / "model.safetensors", metadata={"format": "pt"})
        write_json(place / "config.json", hugging_face_config(shape, "bfloat16"))
        write_json(place / "generation_config.json", {"eos_token_id": 0, "pad_token_id": 0})
        write_json(place / "tokenizer_config.json", tokenizer_config())
        shutil.copyfile(folder / "data" / "tokenizer.json", place / "tokenizer.json")
    shutil.copyfile(folder / "data" / "prompts.jsonl", destination / "prompts.jsonl")


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
    }


def hugging_face_config(shape: Shape, dtype: str) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": False,
        "num_attention_heads": shape.num_heads,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.num_kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": dtype,
        "vocab_size": shape.vocab_size,
    }


def hugging_face_tensors(network: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our training names to the ones every Llama checkpoint has."""
    tensors = {}
    for name, tensor in network.items():
        if name.startswith("blocks."):
            _, layer, rest = name.replace("_orig_mod.", "").split(".", 2)
            name = f"model.layers.{layer}.{NAMES[rest]}"
        else:
            name = {"embedding.weight": "model.embed_tokens.weight", "norm": "model.norm.weight"}[name]
        tensors[name] = tensor.to(torch.bfloat16).contiguous()
    return tensors
