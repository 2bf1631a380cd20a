"""Ministral 3: yarn, and queries that grow with their position. Its folders hold a vision model too."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import Family, all_slide
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

ROPE: Final = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
    "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    growth = keys.number("attention.temperature_scale", 0.0, least=0.0)
    rope = replace(spec.rope, query_growth=growth)
    if keys.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0) != 0.0:
        rope = replace(rope, attention_factor=1.0)  # of mscale and mscale_all_dim, which are equal
    return replace(spec, rope=rope)


MINISTRAL3: Final = Family(
    name="ministral3",
    architecture="mistral3",
    wrappers=("mistral3",),
    defaults={"rope_parameters": ROPE, "head_dim": 128, "sliding_window": None},
    sliding=all_slide,
    gguf_rotates_pairs=True,
    read_gguf=read_gguf,
    gguf_keys=("attention.temperature_scale", "attention.temperature_length", "rope.scaling.yarn_log_multiplier"),
)
