"""Gemma 4, dense (E2B, E4B, 12B, 31B): larger heads in full layers, embeddings for each layer, borrowed keys."""

from dataclasses import replace
from typing import Final, TypeVar

from forerun.checkpoints.families.family import Family, typed_or_all_but_every
from forerun.checkpoints.families.gemma3 import GEMMA3, PERIOD, common
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec, RopeSpec

ROPES: Final = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
LOCAL_THETA: Final = 10_000.0
STILL: Final = 9e29  # a GGUF file divides the frequencies of pairs without rotation by 1e30 in float32
Value = TypeVar("Value")


def sliding(config: JsonFile) -> tuple[int, ...]:
    """As in Gemma 3; the last layer never has a window."""
    last = config.integer("num_hidden_layers") - 1
    return tuple(layer for layer in typed_or_all_but_every(config, PERIOD) if layer != last)


def read(config: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The values of a folder.

    Raises:
        CheckpointError: it needs experts, or attention in both directions.
    """
    if config.flag("enable_moe_block", False):
        raise config.wrong("enable_moe_block", "false: Gemma 4 with experts (26B-A4B) is not supported")
    num_borrowing = borrowers(config, "num_kv_shared_layers", spec)
    if config.values.get("use_bidirectional_attention") == "all":
        raise config.wrong("use_bidirectional_attention", "absent or 'vision': a text model's attention is causal")
    return replace(
        always(spec),
        logit_cap=config.number("final_logit_softcapping") if config.has("final_logit_softcapping") else None,
        layer_input_size=config.integer("hidden_size_per_layer_input", 256, least=0),
        num_borrowing_layers=num_borrowing,
        has_wide_borrowers=config.flag("use_double_wide_mlp", False),
        full_num_kv_heads=full_kv_heads(config, spec),
    )


def always(spec: ModelSpec) -> ModelSpec:
    """Values that no file holds."""
    return replace(common(spec), attention_scale=1.0, value_norm=True, layer_scale=True)


def full_kv_heads(config: JsonFile, spec: ModelSpec) -> int:
    """Key and value heads of layers without a window."""
    if config.flag("attention_k_eq_v", False) and config.has("num_global_key_value_heads"):
        num_heads = config.integer("num_global_key_value_heads")
    else:
        num_heads = override(config, "num_key_value_heads", spec.num_kv_heads)
    if spec.num_heads % num_heads:
        raise config.wrong("num_global_key_value_heads", f"a divisor of num_attention_heads ({spec.num_heads})")
    return num_heads


def borrowers(keys: JsonFile, key: str, spec: ModelSpec) -> int:
    """Layers without their own keys and values."""
    number = keys.integer(key, 0, least=0, most=spec.num_layers - 1)
    if number and len({layer in spec.sliding_layers for layer in range(spec.num_layers - number)}) < 2:
        raise keys.wrong(key, "such that a layer of each kind comes before the sharing ones")
    return number


def override(config: JsonFile, key: str, usual: int) -> int:
    """The value of a key in `per_layer_config`, where transformers since 5.20 writes the values of full layers."""
    layers = config.nested("per_layer_config")
    return next((layers.nested(layer).integer(key, usual) for layer in layers.values), usual)


def full_head_dim(config: JsonFile) -> int:
    return override(config, "head_dim", config.integer("global_head_dim", 512))


def by_layer(keys: JsonFile, key: str, kind: type[Value]) -> list[Value]:
    """A value for each layer, from a list of as many or one value for all."""
    value = keys.values.get(key)
    num_layers = keys.integer("block_count")
    values = list(value) if isinstance(value, list | tuple) else [value] * num_layers
    typed = [one for one in values if type(one) is kind]
    if len(values) != num_layers or len(typed) != num_layers:
        raise keys.wrong(key, f"a list of {num_layers} values, one for each layer")
    return typed


def gguf_sliding(keys: JsonFile) -> tuple[int, ...]:
    slides = by_layer(keys, "attention.sliding_window_pattern", bool)
    return tuple(layer for layer, has_window in enumerate(slides) if has_window)


def of_kind(keys: JsonFile, key: str, *, slides: bool) -> int:
    """The value that all layers with a window have, or all without one."""
    layers = gguf_sliding(keys)
    values = by_layer(keys, key, int)
    found = {value for layer, value in enumerate(values) if (layer in layers) == slides}
    if len(found) != 1:
        raise keys.wrong(key, "one value in all layers with a window, and one in those without")
    return found.pop()


def gguf_usual(keys: JsonFile) -> JsonFile:
    """The keys with the values of layers with a window, whose MLP is that of the first layer."""
    length = {f"attention.{kind}_length": keys.integer(f"attention.{kind}_length_swa") for kind in ("key", "value")}
    usual = {
        "attention.head_count_kv": of_kind(keys, "attention.head_count_kv", slides=True),
        "feed_forward_length": by_layer(keys, "feed_forward_length", int)[0],
    }
    return replace(keys, values={**keys.values, **length, **usual})


def read_gguf(keys: JsonFile, spec: ModelSpec) -> ModelSpec:
    """The values of a GGUF file.

    Raises:
        CheckpointError: layers differ in other ways than those of Gemma 4.
    """
    full = keys.integer("attention.key_length")
    num_borrowing = borrowers(keys, "attention.shared_kv_layers", spec)
    sizes = {"attention.value_length": full, "rope.dimension_count": full, "rope.dimension_count_swa": spec.head_dim}
    for key, size in sizes.items():
        if keys.integer(key, size) != size:
            raise keys.wrong(key, f"the {size} dimensions of a head")
    inner = by_layer(keys, "feed_forward_length", int)
    first = spec.num_layers - num_borrowing
    is_wide = bool(num_borrowing) and inner[-1] == 2 * inner[0]
    if inner != [inner[0]] * first + [inner[0] * (1 + is_wide)] * num_borrowing:
        raise keys.wrong("feed_forward_length", "one value, or twice as much in layers that share keys and values")
    if not spec.rope.divisors:
        raise CheckpointError(
            f"{keys.path} lacks tensor 'rope_freqs.weight', with the rotated part of a head: fetch the file again"
        )
    cap = "final_logit_softcapping"
    full_kv_heads = of_kind(keys, "attention.head_count_kv", slides=False)
    if full_kv_heads < 1 or spec.num_heads % full_kv_heads:
        raise keys.wrong("attention.head_count_kv", f"divisors of attention.head_count ({spec.num_heads})")
    return replace(
        always(spec),
        logit_cap=keys.number(cap) if keys.has(cap) and keys.values[cap] else None,
        layer_input_size=keys.integer("embedding_length_per_layer_input", 0, least=0),
        num_borrowing_layers=num_borrowing,
        has_wide_borrowers=is_wide,
        full_head_dim=full,
        full_num_kv_heads=full_kv_heads,
        sliding_rope=RopeSpec(theta=keys.number("rope.freq_base_swa", LOCAL_THETA)),
        rope=as_proportional(spec.rope),
    )


def as_proportional(rope: RopeSpec) -> RopeSpec:
    """Convert a rotation whose divisors stop the last pairs to one that gives the number of rotated pairs."""
    num_turning = sum(divisor == 1.0 for divisor in rope.divisors)
    turning = rope.divisors[:num_turning]
    still = rope.divisors[num_turning:]
    if rope.kind != "default" or not turning or set(turning) != {1.0} or any(divisor < STILL for divisor in still):
        return rope
    return replace(rope, kind="proportional", rotated_dims=2 * num_turning, divisors=())


GEMMA4: Final = Family(
    name="gemma4_text",
    architecture="gemma4",
    wrappers=("gemma4",),
    defaults={
        "vocab_size": 262_144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "sliding_window": 512,
        "rope_parameters": ROPES,
    },
    head_dim=256,
    full_head_dim=full_head_dim,
    qk_norm=True,
    activation="gelu_pytorch_tanh",
    sliding=sliding,
    partial_rotary=1.0,
    norms=GEMMA3.norms,
    keys_are_values=True,
    gguf_sliding=gguf_sliding,
    gguf_usual=gguf_usual,
    read=read,
    read_gguf=read_gguf,
    gguf_keys=(
        "attention.sliding_window_pattern",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "attention.shared_kv_layers",
        "rope.freq_base_swa",
        "rope.dimension_count_swa",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
    ),
)
