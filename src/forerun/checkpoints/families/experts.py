"""What families with a mixture of experts have in common."""

from dataclasses import replace
from typing import Final

from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

MOST_EXPERTS: Final = 512
GGUF_KEYS: Final = ("expert_count", "expert_used_count", "expert_feed_forward_length")


def with_experts(config: JsonFile, spec: ModelSpec, count: str, chosen: str, size: str) -> ModelSpec:
    """The spec with experts.

    Args:
        count, chosen, size: the keys of the number of experts, of those of a token, and of an expert's intermediate
            size.
    """
    num_experts = config.integer(count, most=MOST_EXPERTS)
    if config.integer(chosen) > num_experts:
        raise config.wrong(chosen, f"at most the {num_experts} experts of a layer")
    return replace(
        spec,
        num_experts=num_experts,
        num_chosen_experts=config.integer(chosen),
        intermediate_size=config.integer(size, spec.intermediate_size),
    )


def with_gguf_experts(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The same by the keys of a GGUF file."""
    return with_experts(keys, spec, *GGUF_KEYS)
