"""The config and tensors of Gemma 4's assistants. Source: transformers' gemma4_assistant."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from forerun.checkpoints.huggingface.config import model_spec_of
from forerun.core.head_spec import AssistantSpec
from forerun.core.json_file import JsonFile

MODEL_TYPES: Final = ("gemma4_assistant", "gemma4_unified_assistant")
ORDER: Final = "masked_embedding.token_ordering"  # the tokens of each centroid in turn
NORMS: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def is_assistant(config: JsonFile) -> bool:
    """Whether the config is an assistant's."""
    return config.values.get("model_type") in MODEL_TYPES


def assistant_spec(config: JsonFile) -> AssistantSpec:
    """The assistant that a config describes.

    Raises:
        CheckpointError: a key is missing or out of range.
    """
    text = config.nested("text_config")
    if text.integer("hidden_size_per_layer_input", 256, least=0):
        raise text.wrong("hidden_size_per_layer_input", "0: an assistant has no embeddings for each layer")
    # All layers borrow keys, unlike in a whole model; the target decides which of its layers they attend to.
    body = model_spec_of(replace(text, values={**text.values, "num_kv_shared_layers": 0, "use_double_wide_mlp": False}))
    is_ordered = config.flag("use_ordered_embeddings", False)
    num_centroids = config.integer("num_centroids", 2048) if is_ordered else 0
    if is_ordered and body.vocab_size % num_centroids:
        raise config.wrong("num_centroids", f"a divisor of vocab_size ({body.vocab_size})")
    return AssistantSpec(
        body=body,
        target_hidden_size=config.integer("backbone_hidden_size", 1536),
        num_centroids=num_centroids,
        num_active=config.integer("centroid_intermediate_top_k", 32, most=num_centroids) if is_ordered else 0,
    )


def assistant_shapes(spec: AssistantSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that an assistant must have."""
    body = spec.body
    hidden = spec.body.hidden_size
    yield "pre_projection.weight", (hidden, 2 * spec.target_hidden_size)
    yield "post_projection.weight", (spec.target_hidden_size, hidden)
    yield "embed_tokens.weight", (body.vocab_size, hidden)
    yield "norm.weight", (hidden,)
    if spec.num_centroids:
        yield "masked_embedding.centroids.weight", (spec.num_centroids, hidden)
        yield ORDER, (body.vocab_size,)
    for idx in range(body.num_layers):
        part = f"layers.{idx}."
        one = body.of_layer(idx)
        yield from ((f"{part}{name}.weight", (hidden,)) for name in NORMS)
        yield f"{part}layer_scalar", (1,)
        yield f"{part}self_attn.q_proj.weight", (one.q_size, hidden)
        yield f"{part}self_attn.q_norm.weight", (one.head_dim,)
        yield f"{part}self_attn.o_proj.weight", (hidden, one.q_size)
        yield f"{part}mlp.gate_proj.weight", (one.intermediate_size, hidden)
        yield f"{part}mlp.up_proj.weight", (one.intermediate_size, hidden)
        yield f"{part}mlp.down_proj.weight", (hidden, one.intermediate_size)
