"""Convert a checkpoint's config.json to a `ModelSpec`. Keys that need unsupported computation are refused by name."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from forerun.checkpoints.families.family import Family
from forerun.checkpoints.families.known import BY_NAME, BY_WRAPPER
from forerun.checkpoints.huggingface.packing import read_packing, require_experts
from forerun.checkpoints.huggingface.rope import read_ropes
from forerun.core.errors import CheckpointError
from forerun.core.json_file import REQUIRED, JsonFile
from forerun.core.model_spec import ModelSpec

CONFIG_NAME: Final = "config.json"
MAP_NAME: Final = "vocabulary_map.safetensors"  # of a draft with a part of its target's tokens
DEFAULT_WINDOW: Final = 4096
OUTER_FLAGS: Final = ("tie_word_embeddings",)  # of a wrapper, if its `text_config` does not have them
MIN_POSITIONS: Final = 2  # a prompt and an answer
MAX_LAYERS: Final = 1024  # the deepest published model of these families has 126


def read_model_spec(folder: Path) -> ModelSpec:
    """The architecture of the checkpoint in `folder`; see `model_spec_of`.

    Raises:
        CheckpointError: there is no such file, or `model_spec_of` refuses it.
    """
    return model_spec_of(JsonFile.read(folder / CONFIG_NAME))


def model_spec_of(config: JsonFile) -> ModelSpec:
    """The architecture that a config describes.

    Absent keys take the defaults of transformers' config classes if these do not depend on one model's size. Custom
    code named by `auto_map` is never run; the key is ignored.

    Raises:
        CheckpointError: a key is missing or out of range, or requires something forerun does not compute.
    """
    read_packing(config)
    whole = config
    config, family = text_part(whole)
    _refuse_unsupported(config, family)
    num_heads, num_kv_heads = read_head_counts(
        config, "num_attention_heads", "num_key_value_heads", is_required=family.kv_heads_required
    )
    max_positions = config.integer("max_position_embeddings", least=MIN_POSITIONS)
    window, sliding_layers = _read_window(config, family)
    attention_bias = family.attention_bias and config.flag("attention_bias", False)
    head_dim = _read_head_dim(config, family, num_heads)
    full_head_dim = head_dim if family.full_head_dim is None else family.full_head_dim(config)
    rope, sliding_rope = read_ropes(config, family, head_dim, full_head_dim)
    spec = ModelSpec(
        family=family.name,
        num_layers=config.integer("num_hidden_layers", most=MAX_LAYERS),
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=config.integer("intermediate_size"),
        vocab_size=config.integer("vocab_size"),
        max_positions=max_positions,
        norm_eps=config.number("rms_norm_eps"),
        qkv_bias=family.qkv_bias or attention_bias,
        out_bias=attention_bias and family.out_bias,
        mlp_bias=family.mlp_bias and config.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        rope=rope,
        full_head_dim=full_head_dim if full_head_dim != head_dim else None,
        window=window,
        sliding_layers=sliding_layers,
        sliding_rope=sliding_rope if sliding_layers else None,
    )
    spec = family.read(config, spec)
    require_experts(whole, spec)
    return spec


def text_part(config: JsonFile) -> tuple[JsonFile, Family]:
    """The part of a config that describes the text model, with its family's defaults, and that family.

    A model with other modalities has the text model's values in `text_config`; these count even if the outer values
    differ, for example if they say that the head is tied to the embedding.

    Raises:
        CheckpointError: the family is unknown.
    """
    name = config.text("model_type")
    if name in BY_WRAPPER:
        family = BY_WRAPPER[name]
        inner = config.nested("text_config")
        if inner.text("model_type", family.name) != family.name:
            raise inner.wrong("model_type", f"{family.name!r}: choose another checkpoint")
        own = {key: config.values[key] for key in OUTER_FLAGS if config.has(key) and not inner.has(key)}
        config = replace(inner, values={**inner.values, **own})
    elif name in BY_NAME:
        family = BY_NAME[name]
    else:
        known = ", ".join((*BY_NAME, *BY_WRAPPER))
        raise config.wrong("model_type", f"one of {known}: choose a checkpoint of one of these families")
    config = family.usual(config)
    return replace(config, values={**family.defaults, **config.values}), family


def _refuse_unsupported(config: JsonFile, family: Family) -> None:
    for key in ("hidden_act", "hidden_activation"):
        if config.text(key, family.activation) != family.activation:
            raise config.wrong(key, f"{family.activation!r}, the only gate activation supported in this family")
    kinds = config.values.get("layer_types") or []
    known = family.layer_kinds
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        raise config.wrong("layer_types", f"a list of {' and '.join(map(repr, known))}, the only kinds supported")


def _read_window(config: JsonFile, family: Family) -> tuple[int | None, tuple[int, ...]]:
    """The size of the sliding window in tokens, None if it has no effect; and the layers that have it."""
    config.integer("num_hidden_layers", most=MAX_LAYERS)
    layers = family.sliding(config)
    if not layers:
        return None, ()
    window = config.integer("sliding_window", DEFAULT_WINDOW, least=MIN_POSITIONS)
    return window if window < config.integer("max_position_embeddings") else None, layers


def _read_head_dim(config: JsonFile, family: Family, num_heads: int) -> int:
    hidden_size = config.integer("hidden_size")
    if not config.has("head_dim") and family.head_dim is None and hidden_size % num_heads:
        raise config.wrong("hidden_size", f"a multiple of num_attention_heads ({num_heads}) unless head_dim is given")
    head_dim = config.integer("head_dim", family.head_dim or hidden_size // num_heads)
    if head_dim % 2:
        raise CheckpointError(
            f"{config.path}: a head has {head_dim} dimensions, but rotating them needs an even number"
        )
    return head_dim


def read_head_counts(keys: JsonFile, heads: str, kv_heads: str, *, is_required: bool = False) -> tuple[int, int]:
    """The numbers of query heads and of key/value heads, which are equal if the keys do not give the second one.

    Args:
        heads, kv_heads: the config's names for them.
        is_required: the second one must be stated.

    Raises:
        CheckpointError: a number is missing or out of range, or query heads cannot share the others evenly.
    """
    num_heads = keys.integer(heads)
    num_kv_heads = keys.integer(kv_heads, REQUIRED if is_required else num_heads)
    if num_heads % num_kv_heads:
        raise keys.wrong(kv_heads, f"a divisor of {heads} ({num_heads})")
    return num_heads, num_kv_heads
