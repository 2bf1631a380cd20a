"""Convert a checkpoint's config.json to a `ModelSpec`. Keys that need unsupported computation are refused by name."""

from pathlib import Path
from typing import Final

from forerun.checkpoints.huggingface.packing import read_packing
from forerun.checkpoints.huggingface.rope import read_rope
from forerun.core.errors import CheckpointError
from forerun.core.json_file import REQUIRED, JsonFile
from forerun.core.model_spec import ModelSpec

CONFIG_NAME: Final = "config.json"
MAP_NAME: Final = "vocabulary_map.safetensors"  # of a draft with a part of its target's tokens
FAMILIES: Final = ("llama", "mistral", "qwen2", "qwen3")
DEFAULT_WINDOW: Final = 4096
QWEN_DEFAULT_FULL_LAYERS: Final = 28
LAYER_KINDS: Final = ("full_attention", "sliding_attention")
QWEN3_DEFAULT_HEAD_DIM: Final = 128
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

    Absent keys take the defaults of transformers' config classes where these do not depend on one model's size. Custom
    code named by `auto_map` is never run; the key is ignored.

    Raises:
        CheckpointError: a key is missing or out of range, or requires something forerun does not compute.
    """
    family = _read_family(config)
    _refuse_unsupported(config, family)
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads if family == "llama" else REQUIRED)
    if num_heads % num_kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of num_attention_heads ({num_heads})")
    max_positions = config.integer("max_position_embeddings", least=MIN_POSITIONS)
    window = _read_window(config, family)
    attention_bias = family in ("llama", "qwen3") and config.flag("attention_bias", False)
    return ModelSpec(
        family=family,
        num_layers=config.integer("num_hidden_layers", most=MAX_LAYERS),
        hidden_size=config.integer("hidden_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_read_head_dim(config, family, num_heads),
        intermediate_size=config.integer("intermediate_size"),
        vocab_size=config.integer("vocab_size"),
        max_positions=min(max_positions, window or max_positions),
        norm_eps=config.number("rms_norm_eps"),
        qkv_bias=family == "qwen2" or attention_bias,
        out_bias=attention_bias,
        mlp_bias=family == "llama" and config.flag("mlp_bias", False),
        qk_norm=family == "qwen3",
        tied_embeddings=config.flag("tie_word_embeddings", False),
        rope=read_rope(config),
        window=window,
    )


def _read_family(config: JsonFile) -> str:
    family = config.text("model_type")
    if family not in FAMILIES:
        raise config.wrong("model_type", f"one of {', '.join(FAMILIES)}: choose a checkpoint of one of these families")
    return family


def _refuse_unsupported(config: JsonFile, family: str) -> None:
    read_packing(config)
    if config.text("hidden_act", "silu") != "silu":
        raise config.wrong("hidden_act", "'silu', the only gate activation supported")


def _read_window(config: JsonFile, family: str) -> int | None:
    """The size of the sliding window in tokens; None if no layer has one, or it has no effect."""
    if not _slides(config, family):
        return None
    window = config.integer("sliding_window", DEFAULT_WINDOW, least=MIN_POSITIONS)
    return window if window < config.integer("max_position_embeddings") else None


def _slides(config: JsonFile, family: str) -> bool:
    """Whether any layer has a sliding window: in Mistral all, in Qwen those in the config, in Llama none."""
    kinds = config.values.get("layer_types") or []
    known = LAYER_KINDS if family != "llama" else LAYER_KINDS[:1]
    if not isinstance(kinds, list) or any(kind not in known for kind in kinds):
        raise config.wrong("layer_types", f"a list of {' and '.join(map(repr, known))}, the only kinds supported")
    if family == "llama" or _is_null(config, "sliding_window"):
        return False
    if family == "mistral":
        return True
    if not config.flag("use_sliding_window", False):
        return False
    if kinds:
        return LAYER_KINDS[1] in kinds
    num_full = config.integer("max_window_layers", QWEN_DEFAULT_FULL_LAYERS, least=0)
    return num_full < config.integer("num_hidden_layers", most=MAX_LAYERS)


def _is_null(config: JsonFile, key: str) -> bool:
    """Whether the key is present with value null, which for Mistral differs from being absent."""
    return key in config.values and config.values[key] is None


def _read_head_dim(config: JsonFile, family: str, num_heads: int) -> int:
    hidden_size = config.integer("hidden_size")
    if not config.has("head_dim") and family != "qwen3" and hidden_size % num_heads:
        raise config.wrong("hidden_size", f"a multiple of num_attention_heads ({num_heads}) unless head_dim is given")
    head_dim = config.integer("head_dim", QWEN3_DEFAULT_HEAD_DIM if family == "qwen3" else hidden_size // num_heads)
    if head_dim % 2:
        raise CheckpointError(
            f"{config.path}: a head has {head_dim} dimensions, but rotating them needs an even number"
        )
    return head_dim
