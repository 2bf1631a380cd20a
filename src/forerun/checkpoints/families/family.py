"""The description of a family: all that sets its checkpoints apart from those of the others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from forerun.core.json_file import JsonFile

LAYER_KINDS: Final = ("full_attention", "sliding_attention")


def none_slides(_: JsonFile) -> bool:
    """No layer has a sliding window."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Defaults are those of Llama; absent keys of a config take the values of transformers' config classes.

    Args:
        name: `model_type` in config.json.
        architecture: `general.architecture` in a GGUF file; None: its files have another family's.
        qkv_bias: the query, key and value projections always have a bias.
        attention_bias: the config's `attention_bias` gives all four projections of attention a bias.
        mlp_bias: the config's `mlp_bias` gives the projections of the MLP a bias.
        qk_norm: each head's queries and keys are normalised.
        kv_heads_required: a config must have `num_key_value_heads`; else the default is the number of query heads.
        head_dim: default size of a head; None: hidden size over heads.
        layer_kinds: the entries that a config's `layer_types` may have.
        slides: whether any layer has a sliding window, by the config.
        gguf_rotates_pairs: llama.cpp rotates neighbouring dimensions, so its converter reorders query and key rows;
            for the others it rotates dimension i with i + D/2, as we do.
    """

    name: str
    architecture: str | None
    qkv_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    kv_heads_required: bool = True
    head_dim: int | None = None
    layer_kinds: tuple[str, ...] = LAYER_KINDS
    slides: Callable[[JsonFile], bool] = none_slides
    gguf_rotates_pairs: bool = False
