"""Granite 4: factors of embedding, attention, residual stream and logits. Of the hybrid class only models are supported
whose layers all have attention, such as granite-4.0-micro."""

from dataclasses import replace
from typing import Final

from forerun.checkpoints.families.family import FUSED_GATE_UP, Family
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec


def scaled(spec: ModelSpec, *, embedding: float, attention: float, residual: float, logits: float) -> ModelSpec:
    """The spec with these factors.

    A branch times `residual` is added to the residual stream. We keep the stream divided by `residual` instead: the
    embedding enters divided by it, branches are added as they are, and every norm gives the same result with its eps
    divided by residual^2.
    """
    return replace(
        spec,
        embedding_scale=embedding / residual,
        norm_eps=spec.norm_eps / residual**2,
        attention_scale=attention,
        logit_divisor=logits,
    )


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    return scaled(
        spec,
        embedding=config.number("embedding_multiplier", 1.0),
        attention=config.number("attention_multiplier", 1.0),
        residual=config.number("residual_multiplier", 1.0),
        logits=config.number("logits_scaling", 1.0),
    )


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    return scaled(
        spec,
        embedding=keys.number("embedding_scale", 1.0),
        attention=keys.number("attention.scale", spec.head_dim**-0.5),
        residual=keys.number("residual_scale", 1.0),
        logits=keys.number("logit_scale", 1.0),
    )


def read_hybrid(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """A model of the hybrid class.

    Raises:
        CheckpointError: it has Mamba layers or experts.
    """
    key = "layer_types" if config.has("layer_types") else "layers_block_type"
    kinds = config.values.get(key)
    if not isinstance(kinds, list) or len(kinds) != spec.num_layers or set(kinds) - {"attention", "full_attention"}:
        raise config.wrong(key, "a list of only 'attention': Mamba layers are not supported")
    if config.integer("num_local_experts", 8, least=0) != 0:
        raise config.wrong("num_local_experts", "0: experts of this family are not supported")
    spec = replace(spec, intermediate_size=config.integer("shared_intermediate_size", 1024))
    if config.values.get("position_embedding_type") != "rope":
        spec = replace(spec, unrotated_layers=tuple(range(spec.num_layers)))
    return read(config, spec)


GRANITE: Final = Family(
    name="granite",
    architecture="granite",
    attention_bias=True,
    mlp_bias=True,
    kv_heads_required=False,
    gguf_rotates_pairs=True,
    read=read,
    scales_attention=True,
    read_gguf=read_gguf,
    gguf_keys=("embedding_scale", "residual_scale", "logit_scale"),
)
GRANITE_HYBRID: Final = Family(
    name="granitemoehybrid",
    architecture=None,  # the converter writes granite for a model without Mamba layers
    attention_bias=True,
    kv_heads_required=False,
    layer_kinds=("attention", "full_attention", "mamba", "linear_attention"),  # `read_hybrid` refuses the last two
    gguf_rotates_pairs=True,
    fused={"shared_mlp.input_linear": FUSED_GATE_UP},
    renamed={"shared_mlp.output_linear": "mlp.down_proj"},
    read=read_hybrid,
)
