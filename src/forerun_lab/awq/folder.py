"""A packed model as a folder in AutoAWQ's layout, version "gemm"; see `checkpoints.huggingface.packed_tensors`.

Legend: O output features, I input features, G groups of input features, W words.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.checkpoints.huggingface.packed_tensors import IN_WORD
from forerun.checkpoints.huggingface.stored_tensors import SINGLE_NAME
from forerun.checkpoints.prepared.write import copy_texts, save_tensors
from forerun.core.model_spec import ModelSpec
from forerun.model.weights import Int4Weight
from forerun_lab.awq.resumable_folder import require_room, resumable_folder

ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # the output of each code of a word, lowest bits first


def write_folder(out: Path, source: Path, tensors: Mapping[str, Tensor], group_size: int) -> None:
    """Write a folder under a temporary name, and rename it once it is complete.

    Args:
        source: the folder of the plain model; its tokenizer and other text files are copied.
        tensors: keyed by their names in the folder.

    Raises:
        ConfigError: the folder cannot be written.
    """
    with resumable_folder(out, None) as unfinished:
        require_room(unfinished, sum(tensor.nbytes for tensor in tensors.values()))
        copy_texts(source, unfinished, but=[CONFIG_NAME])
        config = json.loads((source / CONFIG_NAME).read_text(encoding="utf-8"))
        config["quantization_config"] = quantization_config(group_size)
        (unfinished / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_tensors(unfinished / SINGLE_NAME, tensors)


def quantization_config(group_size: int) -> dict[str, object]:
    """The entry of config.json that describes the packing, with AutoAWQ's keys."""
    return {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }


def stored_tensors(
    spec: ModelSpec, packed: Mapping[str, Int4Weight], plain: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Every tensor of the folder, keyed by its name in the folder.

    Args:
        packed: keyed by our names, without ".weight".
        plain: all other tensors, keyed by our names; they are stored in `dtype`.
    """
    tensors = dict[str, Tensor]()
    for name, place in tensor_plan(spec).items():
        rows = slice(place.row_start, place.row_start + place.shape[0])
        weight = place.name.removesuffix(".weight")
        if weight not in packed or place.name.endswith(".bias"):
            tensors[name] = plain[place.name][rows].to("cpu", dtype).contiguous()
            continue
        module = name.removesuffix(".weight")
        whole = packed[weight]
        tensors[f"{module}.qweight"] = words_of(whole.values_OI[rows])
        tensors[f"{module}.qzeros"] = words_of(whole.zeros_OG[rows])
        tensors[f"{module}.scales"] = whole.scales_OG[rows].t().half().contiguous()
    return tensors


def words_of(codes: Tensor) -> Tensor:
    """Pack codes [O, I] or [O, G], eight outputs to a word, into int32 [I, W] or [G, W]."""
    columns = codes.t().reshape(codes.shape[1], -1, IN_WORD)[:, :, ORDER]
    pairs = columns[:, :, 0::2] | (columns[:, :, 1::2] << 4)
    return pairs.contiguous().view(torch.int32).squeeze(-1).contiguous()
