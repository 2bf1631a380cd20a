"""The values in a config.json of heads with layers like a Llama's that join the target's features: EAGLE-3 and DFlash.

There are two dialects: a flat config as of a Llama or Qwen3 (EAGLE, SpecForge, AngelSlim, ModelOpt, z-lab), and the one
of the speculators library, in which the sizes are nested. Sources: EAGLE's cnets.py; SpecForge's llama3_eagle.py;
speculators' eagle3/config.py and dspark/config.py; vLLM's transformers_utils/configs/speculators/algos.py;
dflash/model.py.
"""

from typing import Final

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.huggingface.config import read_head_counts
from forerun.checkpoints.huggingface.rope import read_ropes
from forerun.core.errors import CheckpointError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import Shapes

SPECULATORS_KEY: Final = "speculators_model_type"
NESTED_KEY: Final = "transformer_layer_config"
FC: Final = "fc.weight"  # joins the target's features
MAX_LAYERS: Final = 64
MAX_TARGET_LAYERS: Final = 1024


def has_fc(shapes: Shapes) -> bool:
    """Whether there is a matrix that joins the target's features."""
    return len(shapes.get(FC, ())) == 2


def read_body(sizes: JsonFile, config: JsonFile, shapes: Shapes) -> ModelSpec:
    """The sizes of the head's layers; the output has as many rows as its own tensor, or else as the target's."""
    if sizes.text("hidden_act", "silu") != "silu":
        raise sizes.wrong("hidden_act", "'silu', the only gate activation supported")
    num_heads, num_kv_heads = read_head_counts(sizes, "num_attention_heads", "num_key_value_heads")
    hidden_size = sizes.integer("hidden_size")
    head_dim = sizes.integer("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise sizes.wrong("head_dim", "an even number: heads are rotated")
    own_rows = shapes.get("lm_head.weight", ())[:1]
    vocab_size = sizes.integer("vocab_size")
    rope = read_ropes(sizes, BY_NAME["llama"], head_dim, head_dim)[0]
    if rope.query_growth:
        raise CheckpointError(
            f"{sizes.path}: llama_4_scaling_beta is {rope.query_growth}, but no head has been seen "
            "that scales its queries: fetch the head again, or set it to 0"
        )
    sizes.integer("num_hidden_layers", 1, most=MAX_TARGET_LAYERS)  # checked alone: the tensors are counted
    num_layers = len({name.split(".")[1] for name in shapes if name.startswith("layers.")})
    return ModelSpec(
        family="llama",
        num_layers=min(num_layers, MAX_LAYERS),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        intermediate_size=sizes.integer("intermediate_size"),
        vocab_size=own_rows[0] if own_rows else config.integer("draft_vocab_size", vocab_size),
        max_positions=sizes.integer("max_position_embeddings", 2048),
        norm_eps=sizes.number("rms_norm_eps", 1e-6),
        qkv_bias="layers.0.self_attn.q_proj.bias" in shapes,
        qk_norm="layers.0.self_attn.q_norm.weight" in shapes,
        rope=rope,
    )


def num_taps_of(config: JsonFile, shapes: Shapes, target_hidden_size: int) -> int:
    """How many features `fc` has columns for."""
    num_taps, rest = divmod(shapes[FC][1], target_hidden_size)
    if rest or not num_taps:
        raise config.wrong(
            "target_hidden_size", f"a divisor of {shapes[FC][1]}: so many columns has {FC}, for features of this size"
        )
    return num_taps


def tapped_layers(config: JsonFile, key: str, num_taps: int, *, first: int) -> tuple[int, ...] | None:
    """The layers of the target whose features the head reads, as many as it has room for; None if the key is absent."""
    ids = layer_ids(config, key, first=first)
    if ids is not None and len(ids) != num_taps:
        raise config.wrong(key, f"a list of {num_taps} layers of the target, because {FC} has columns for {num_taps}")
    return ids


def layer_ids(config: JsonFile, key: str, *, first: int) -> tuple[int, ...] | None:
    """Layers of the target; None if the key is absent."""
    if not config.has(key):
        return None
    ids = config.values[key]
    if not isinstance(ids, list | tuple) or not all(
        isinstance(layer, int) and first <= layer < MAX_TARGET_LAYERS for layer in ids
    ):
        raise config.wrong(key, f"a list of layers of the target, each {first} or more")
    return tuple(ids)
