"""Random gpt-oss models whose experts are MXFP4, as folders and as GGUF files."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from forerun.checkpoints.huggingface.config import read_model_spec
from tests.golden.gguf_writer import add_sizes
from tests.golden.random_families import RandomFamily, gpt_oss
from tests.golden.random_gguf import add_keys, of_experts

WHOLE_GROUPS = RandomFamily(
    classes="GptOss", draw=lambda rng: {**gpt_oss(rng), "hidden_size": rng.choice([32, 64]), "intermediate_size": 96}
)


def save(seed: int, folder: Path, family: RandomFamily = WHOLE_GROUPS) -> Any:
    """A model in transformers with the values of the folder, which has its experts in MXFP4."""
    model = family.build(seed)
    generator = torch.Generator().manual_seed(seed)
    packed = dict[str, Tensor]()
    for layer, block in enumerate(model.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            own = f"model.layers.{layer}.mlp.experts.{name}"
            weight = getattr(block.mlp.experts, name)
            num_experts, num_in, num_out = weight.shape
            shape = (num_experts, num_out, num_in // 32, 16)
            codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
            scales = torch.randint(121, 125, shape[:3], dtype=torch.uint8, generator=generator)
            weight.data = convert_moe_packed_tensors(codes, scales, dtype=torch.float64)
            packed |= {f"{own}_blocks": codes, f"{own}_scales": scales}
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    plain = {name: values for name, values in load_file(path).items() if f"{name}_blocks" not in packed}
    save_file({**plain, **packed}, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return model


def write_gguf(folder: Path, path: Path) -> Path:
    """The same model as a GGUF file, its experts in llama.cpp's blocks."""
    spec = read_model_spec(folder)
    config = json.loads((folder / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, spec.num_layers)
    writer = gguf.GGUFWriter(path, "gpt-oss")
    add_sizes(writer, spec)
    add_keys(writer, spec, config)
    stored = load_file(folder / "model.safetensors")
    for name, values in stored.items():
        if name.endswith("_blocks"):
            blocks = ggml_blocks(values, stored[name.replace("_blocks", "_scales")])
            plain = name.removesuffix("_blocks") + ".weight"
            parts = {plain: blocks}
            if "gate_up" in name:
                parts = {
                    plain.replace("gate_up", "gate"): blocks[:, ::2],
                    plain.replace("gate_up", "up"): blocks[:, 1::2],
                }
            for part, rows in parts.items():
                own = names.get_name(part, try_suffixes=(".weight",))
                writer.add_tensor(own, np.ascontiguousarray(rows), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif not name.endswith("_scales"):
            for part, plain_values in of_experts(name, values) if is_other(name) else [(name, values)]:
                own = names.get_name(part, try_suffixes=(".weight", ".bias"))
                writer.add_tensor(own, plain_values.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def is_other(name: str) -> bool:
    return ".experts." in name or name.endswith(".sinks")


def ggml_blocks(codes: Tensor, scales: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[E, O, G, 16] and [E, O, G] as rows of blocks [E, O, 17 G], byte by byte: a scale, then values j and j + 16."""
    pairs = codes.numpy()
    values = np.stack((pairs & 15, pairs >> 4), -1).reshape(*pairs.shape[:3], 32)
    blocks = np.empty((*pairs.shape[:3], 17), np.uint8)
    blocks[..., 0] = scales.numpy()
    for place in range(16):
        blocks[..., 1 + place] = values[..., place] + 16 * values[..., place + 16]
    return blocks.reshape(*pairs.shape[:2], -1)
