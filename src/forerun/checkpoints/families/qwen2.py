"""Qwen2 and Qwen2.5, DeepSeek-R1-Distill-Qwen: biases on query, key and value; some layers may have a window."""

from typing import Final

from forerun.checkpoints.families.family import SLIDING, Family
from forerun.core.json_file import JsonFile

DEFAULT_FULL_LAYERS: Final = 28


def some_slide(config: JsonFile) -> tuple[int, ...]:
    """The layers with a window: by `layer_types`, else all layers from `max_window_layers` on."""
    if config.is_null("sliding_window") or not config.flag("use_sliding_window", False):
        return ()
    num_layers = config.integer("num_hidden_layers")
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return tuple(layer for layer, kind in enumerate(kinds[:num_layers]) if kind == SLIDING)
    return tuple(range(config.integer("max_window_layers", DEFAULT_FULL_LAYERS, least=0), num_layers))


QWEN2: Final = Family(name="qwen2", architecture="qwen2", qkv_bias=True, sliding=some_slide)
