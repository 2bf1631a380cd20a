"""A random-weight Llama of 130M parameters with the built-in tokenizer, and a draft made of its first layers.

python benchmarks/random_pair.py FOLDER

Writes FOLDER/target and FOLDER/draft. Random weights cost what trained ones cost, so plain decoding can be measured
with them. What a drafter gains with them says nothing about real models: greedy random text soon repeats itself, and a
target whose layers add little to its embedding agrees with its own first layers more or less often.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from common import ASSETS
from transformers import LlamaConfig, LlamaForCausalLM

SHAPE = {
    "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 12,
    "vocab_size": 4096, "max_position_embeddings": 4096, "bos_token_id": None, "eos_token_id": 0,
}  # fmt: skip
NUM_LAYERS, NUM_DRAFT_LAYERS = 18, 3


def random_llama(num_layers: int, **shape: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=num_layers, tie_word_embeddings=False, **shape))


def save(model: LlamaForCausalLM, folder: Path) -> Path:
    """In bfloat16, with the built-in tokenizer's files beside it."""
    model.to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ASSETS / "target" / name, folder / name)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    target, draft = (random_llama(num_layers, **SHAPE) for num_layers in (NUM_LAYERS, NUM_DRAFT_LAYERS))
    wanted = draft.state_dict()
    draft.load_state_dict({name: tensor for name, tensor in target.state_dict().items() if name in wanted})
    save(target, folder / "target")
    save(draft, folder / "draft")
    print(f"{sum(p.numel() for p in target.parameters()) / 1e6:.0f}M and {NUM_DRAFT_LAYERS} of {NUM_LAYERS} layers")


if __name__ == "__main__":
    main()
