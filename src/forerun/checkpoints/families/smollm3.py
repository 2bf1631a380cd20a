"""SmolLM3: every fourth layer has no rotation."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.qwen2 import some_slide
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

INTERVAL: Final = 4  # the metadata of GGUF files lacks it; llama.cpp has the same number in its code


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """`no_rope_layers` has a 0 for each layer without rotation; without it, every `no_rope_layer_interval`-th."""
    marks = config.values.get("no_rope_layers")
    if not marks:
        interval = config.integer("no_rope_layer_interval", INTERVAL)
        return replace(spec, unrotated_layers=every(interval, spec.num_layers))
    if not isinstance(marks, list) or len(marks) != spec.num_layers or any(mark not in (0, 1) for mark in marks):
        raise config.wrong("no_rope_layers", f"a list of {spec.num_layers} numbers, each 0 or 1")
    return replace(spec, unrotated_layers=tuple(layer for layer, mark in enumerate(marks) if not mark))


def read_gguf(_: JsonFile, spec: ModelSpec) -> ModelSpec:
    return replace(spec, unrotated_layers=every(INTERVAL, spec.num_layers))


def every(interval: int, num_layers: int) -> tuple[int, ...]:
    return tuple(range(interval - 1, num_layers, interval))


SMOLLM3: Final = Family(
    name="smollm3",
    architecture="smollm3",
    defaults={"tie_word_embeddings": True, "rope_theta": 2_000_000.0},
    attention_bias=True,
    mlp_bias=True,
    sliding=some_slide,
    gguf_rotates_pairs=True,
    read=read,
    read_gguf=read_gguf,
)
