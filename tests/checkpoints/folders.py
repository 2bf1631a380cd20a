"""Checkpoint folders of a tiny model, written by hand, for the tests to damage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FIRST_SHARD = "model-00001-of-00002.safetensors"
SECOND_SHARD = "model-00002-of-00002.safetensors"


def write_json(path: Path, values: object) -> None:
    path.write_text(json.dumps(values))


def write_config(folder: Path, **changes: Any) -> Path:
    """LLAMA with `changes`; a change to ... removes the key."""
    values = {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}
    write_json(folder / "config.json", values)
    return folder


def random_tensors(dtype: torch.dtype = torch.float32, *, seed: int = 0, **changes: Any) -> dict[str, Tensor]:
    """The tensors of LLAMA with `changes` under their Hugging Face names, written out independently of the code's own
    table.
    """
    generator = torch.Generator().manual_seed(seed)
    config = {**LLAMA, **changes}
    hidden = config["hidden_size"]
    middle = config["intermediate_size"]
    vocab = config["vocab_size"]
    head_dim = hidden // config["num_attention_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer_idx in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer_idx}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": (config["num_key_value_heads"] * head_dim, hidden),
            f"{prefix}self_attn.v_proj.weight": (config["num_key_value_heads"] * head_dim, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": (middle, hidden),
            f"{prefix}mlp.up_proj.weight": (middle, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, middle),
        }
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def write_single(folder: Path, tensors: Mapping[str, Tensor], **changes: Any) -> Path:
    write_config(folder, **changes)
    save_file(dict(tensors), folder / SINGLE)
    return folder


def write_shards(folder: Path, tensors: Mapping[str, Tensor]) -> Path:
    """Two shards of alternating tensors and their index."""
    write_config(folder)
    weight_map = {name: (FIRST_SHARD, SECOND_SHARD)[idx % 2] for idx, name in enumerate(tensors)}
    for shard in (FIRST_SHARD, SECOND_SHARD):
        save_file({name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}, folder / shard)
    write_json(folder / INDEX, {"metadata": {}, "weight_map": weight_map})
    return folder


def edit_weight_map(folder: Path, **changes: Any) -> None:
    """Change entries of the index; a change to ... removes one. Dots in tensor names are written as __."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= {name.replace("__", "."): shard for name, shard in changes.items()}
    index["weight_map"] = {name: shard for name, shard in index["weight_map"].items() if shard is not ...}
    write_json(folder / INDEX, index)


def model_identity(folder: Path) -> str:
    """The identity of the model in a folder."""
    return HuggingFaceFolder(name=str(folder), folder=folder).identity()
