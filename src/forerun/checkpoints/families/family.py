"""The description of a family: all differences of its checkpoints from those of other families."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

FULL = "full_attention"
SLIDING = "sliding_attention"
LINEAR = "linear_attention"
LAYER_KINDS: Final = (FULL, SLIDING)
FUSED_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FUSED_GATE_UP: Final = ("mlp.gate_proj", "mlp.up_proj")
MOST_EXPERTS: Final = 512
KV_HEADS: Final = "attention.head_count_kv"  # of a GGUF file; 0 for layers without attention
EXPERT_KEYS: Final = ("expert_count", "expert_used_count", "expert_feed_forward_length")  # of a GGUF file
SHARED_KEY: Final = "expert_shared_feed_forward_length"

SlidingLayers = Callable[[JsonFile], tuple[int, ...]]
ReadValues = Callable[[JsonFile, ModelSpec], ModelSpec]


def none_slides(_: JsonFile) -> tuple[int, ...]:
    """No layer has a sliding window."""
    return ()


def all_slide(config: JsonFile) -> tuple[int, ...]:
    """All layers have a window, unless `sliding_window` is null."""
    return () if config.is_null("sliding_window") else tuple(range(config.integer("num_hidden_layers")))


def all_slide_in_gguf(keys: JsonFile) -> tuple[int, ...]:
    """All layers have a window if the file has one."""
    return tuple(range(keys.integer("block_count"))) if keys.has("attention.sliding_window") else ()


def typed_or_all_but_every(config: JsonFile, period: int) -> tuple[int, ...]:
    """The sliding layers by `layer_types`; without it, all but every `period`-th layer."""
    if config.is_null("sliding_window"):
        return ()
    kinds = config.values.get("layer_types")
    num_layers = config.integer("num_hidden_layers")
    if isinstance(kinds, list) and kinds:
        return tuple(layer for layer, kind in enumerate(kinds[:num_layers]) if kind == SLIDING)
    return all_but_every(period, num_layers)


def all_but_every(period: int, num_layers: int) -> tuple[int, ...]:
    """The layers whose number, counted from 1, is not a multiple of `period`."""
    return tuple(layer for layer in range(num_layers) if (layer + 1) % period)


def without_layers_of_zeros(keys: JsonFile, key: str) -> JsonFile:
    """The keys of a GGUF file with one number in place of a list of it and of 0, for layers that have no such thing.

    Raises:
        CheckpointError: the list has other numbers too, or not one for each layer.
    """
    counts = keys.values.get(key)
    if not isinstance(counts, list | tuple):
        return keys
    some = {count for count in counts if count}
    if len(some) != 1 or len(counts) != keys.integer("block_count"):
        raise keys.wrong(key, "a number for each layer: 0, or one and the same number")
    return replace(keys, values={**keys.values, key: some.pop()})


def layers_with(keys: JsonFile, key: str) -> tuple[int, ...]:
    """The layers for which such a list has no 0; all of them if the key has one number."""
    counts = keys.values.get(key)
    if not isinstance(counts, list | tuple):
        return tuple(range(keys.integer("block_count")))
    return tuple(layer for layer, count in enumerate(counts) if count)


def layers_of_kind(config: JsonFile, kind: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    """The layers of this kind by `layer_types`; without it, the usual ones.

    Raises:
        CheckpointError: it does not have one entry for each layer, or all layers are of this kind.
    """
    kinds = config.values.get("layer_types")
    num_layers = config.integer("num_hidden_layers")
    layers = usual
    is_complete = True
    if isinstance(kinds, list) and kinds:
        layers = tuple(layer for layer, other in enumerate(kinds) if other == kind)
        is_complete = len(kinds) == num_layers
    if not is_complete or len(layers) == num_layers:
        raise config.wrong("layer_types", f"a list of {num_layers} entries, not all of which are {kind!r}")
    return layers


def as_they_are(keys: JsonFile) -> JsonFile:
    """The keys mean what they mean in other families, and all layers have the same values."""
    return keys


def unchanged(_: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The family adds no values."""
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Defaults are those of Llama; absent keys of a config take the values of transformers' config classes.

    Args:
        name: `model_type` in config.json.
        architecture: `general.architecture` in a GGUF file; None: its files have another family's.
        other_architecture: that of files of models with experts, if it differs.
        prefix: of the names of all tensors but the head's, in place of "model.".
        wrappers: the `model_type`s of models with other modalities, whose `text_config` is of this family.
        defaults: values of absent keys of a config, where transformers' class has one.
        qkv_bias: the query, key and value projections always have a bias.
        attention_bias: the config's `attention_bias` gives the projections of attention a bias.
        out_bias: that bias is the last projection's too.
        mlp_bias: the config's `mlp_bias` gives the projections of the MLP a bias.
        qk_norm: each head's queries and keys are normalised.
        kv_heads_required: a config must have `num_key_value_heads`; else the default is the number of query heads.
        head_dim: default size of a head; None: hidden size divided by the number of heads.
        full_head_dim: the size of a head in layers without a window, if it differs from the others'.
        activation: of the gate, as a config names it.
        layer_kinds: the entries that a config's `layer_types` may have.
        sliding: the layers with a sliding window, by the config; `gguf_sliding` by the keys of a GGUF file.
        partial_rotary: the rotated share of a head, if a config does not give it; None: a config must not give it.
        is_interleaved: neighbouring dimensions of a head are rotated together; otherwise dimension i with i + D / 2.
        gguf_rotates_pairs: they are in GGUF files, because the converter reorders query and key rows for llama.cpp.
        scales_attention: a GGUF file's `attention.scale` may differ from 1 / sqrt(head size).
        norms: our names of a layer's norms, with those of config folders.
        keys_are_values: layers without a projection of values use the projection of the keys.
        norm_offset: the number that is added to a norm's stored weight; GGUF files hold the sum.
        fused: projections that a folder stores as one, with their parts in the order of their rows.
        renamed: other modules, of layers or of the whole model, whose names differ from Llama's, with Llama's names; an
            asterisk is the number of an expert.
        shared_expert: the module of the MLP that every token goes through besides its experts.
        gguf_fused, gguf_norms: the same for GGUF files.
        usual: a config with the keys of other families, where this one's have other names.
        gguf_final_norm: the name of the last norm in a GGUF file.
        gguf_usual: a GGUF file's keys, where values that differ by layer are those of layers with a window.
        read: sets the values of the spec that only this family has, by the config; `read_gguf` by a GGUF file's keys.
        stacks_experts: a folder has one tensor for a weight of all experts of a layer.
        fuses_nets: a folder has two products of a gated delta net, with the parts of one key head after another.
        gguf_keys: the keys that `read_gguf` and `gguf_sliding` read, besides those of all families.
    """

    name: str
    architecture: str | None
    other_architecture: str | None = None
    prefix: str = "model."
    wrappers: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    qkv_bias: bool = False
    attention_bias: bool = False
    out_bias: bool = True
    mlp_bias: bool = False
    qk_norm: bool = False
    kv_heads_required: bool = True
    head_dim: int | None = None
    full_head_dim: Callable[[JsonFile], int] | None = None
    activation: str = "silu"
    layer_kinds: tuple[str, ...] = LAYER_KINDS
    sliding: SlidingLayers = none_slides
    gguf_sliding: SlidingLayers = all_slide_in_gguf
    partial_rotary: float | None = None
    is_interleaved: bool = False
    gguf_rotates_pairs: bool = False
    scales_attention: bool = False
    norms: Mapping[str, str] = field(
        default_factory=lambda: {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    )
    keys_are_values: bool = False
    norm_offset: float = 0.0
    fused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    shared_expert: str = "mlp.shared_expert"
    gguf_fused: Mapping[str, Sequence[str]] = field(default_factory=dict)
    gguf_norms: Mapping[str, str] = field(
        default_factory=lambda: {
            "attention_norm": "attn_norm",
            "attention_post_norm": "post_attention_norm",
            "mlp_norm": "ffn_norm",
            "mlp_post_norm": "post_ffw_norm",
        }
    )
    gguf_final_norm: str = "output_norm"
    usual: Callable[[JsonFile], JsonFile] = as_they_are
    gguf_usual: Callable[[JsonFile], JsonFile] = as_they_are
    read: ReadValues = unchanged
    read_gguf: ReadValues = unchanged
    gguf_keys: tuple[str, ...] = ()
    stacks_experts: bool = False
    fuses_nets: bool = False


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
    return with_experts(keys, spec, *EXPERT_KEYS)
