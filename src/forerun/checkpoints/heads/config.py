"""Convert a published head's config.json to a `HeadSpec`.

There are two dialects: a flat config as of a Llama or Qwen3 (EAGLE, SpecForge, AngelSlim, ModelOpt, z-lab), and the one
of the speculators library, in which the sizes are nested. Sources: EAGLE's cnets.py; SpecForge's llama3_eagle.py;
speculators' eagle3/config.py and dspark/config.py; vLLM's transformers_utils/configs/speculators/algos.py;
dflash/model.py.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from forerun.checkpoints.families.known import BY_NAME
from forerun.checkpoints.heads.assistant import assistant_spec, is_assistant
from forerun.checkpoints.huggingface.config import read_head_counts
from forerun.checkpoints.huggingface.rope import read_ropes
from forerun.core.errors import CheckpointError
from forerun.core.head_spec import DFlashSpec, EagleSpec, HeadSpec
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]  # of all tensors of a head, the first layer being "layers.0."
SPECULATORS_KEY: Final = "speculators_model_type"
NESTED_KEY: Final = "transformer_layer_config"
IDS_KEY: Final = "eagle_aux_hidden_state_layer_ids"
FC: Final = "fc.weight"
MAX_LAYERS: Final = 64
MAX_TARGET_LAYERS: Final = 1024
MAX_BLOCK: Final = 128  # rows of a tree, beyond which no token of a block can be verified


def head_spec_of(config: JsonFile, shapes: Shapes) -> HeadSpec:
    """The head that a config and its tensors describe.

    Options that the tensors show are read from the tensors, because not every trainer writes them into the config.

    Raises:
        CheckpointError: a key is missing or out of range, or the head is of a kind that forerun does not run.
    """
    if is_assistant(config):
        return assistant_spec(config)
    if FC not in shapes or len(shapes[FC]) != 2:
        raise CheckpointError(
            f"{config.path.parent} holds no matrix {FC}, which joins the target's features: forerun runs EAGLE-3, "
            "DFlash, DFlash 2 and DSpark heads and assistants of Gemma 4 only"
        )
    kind = config.text(SPECULATORS_KEY, "dflash" if "hidden_norm.weight" in shapes else "eagle3")
    match kind:
        case "eagle3":
            return _eagle_spec(config, shapes)
        case "dflash" | "dflash2" | "dspark":
            return _dflash_spec(config, shapes, drafts_from_root=kind == "dspark")
        case _:
            raise config.wrong(
                SPECULATORS_KEY, "'eagle3', 'dflash', 'dflash2' or 'dspark': choose a head of one of these kinds"
            )


def _eagle_spec(config: JsonFile, shapes: Shapes) -> EagleSpec:
    nested = config.nested("eagle_config")
    is_nested = config.has(SPECULATORS_KEY)
    if not nested.flag("use_aux_hidden_state", True):
        raise nested.wrong("use_aux_hidden_state", "true: heads that read only the last hidden state are not supported")
    body = _read_body(config.nested(NESTED_KEY) if is_nested else config, config, shapes)
    target_hidden_size = config.integer("target_hidden_size", body.hidden_size)
    has_state_norm = config.flag("norm_output", not is_nested)
    num_taps = _num_taps(config, shapes, target_hidden_size)
    return EagleSpec(
        body=body,
        target_hidden_size=target_hidden_size,
        layer_ids=_tapped(config if config.has(IDS_KEY) else nested, IDS_KEY, num_taps, first=1),
        num_taps=num_taps,
        norms_each="fc_norm.0.weight" in shapes,
        norms_all="input_norm.weight" in shapes,
        norms_residual=config.flag("norm_before_residual", is_nested),
        # The same key means that the logits are normalised, or, in speculators, the state for the head's next step.
        norms_logits=is_nested or has_state_norm,
        norms_state=is_nested and has_state_norm,
    )


def _dflash_spec(config: JsonFile, shapes: Shapes, *, drafts_from_root: bool) -> DFlashSpec:
    """A block head.

    Args:
        drafts_from_root: the value if its config does not give it.
    """
    nested = config.nested("dflash_config")
    is_nested = config.has(SPECULATORS_KEY)
    sizes = config.nested(NESTED_KEY) if is_nested else config

    def part(key: str, default: JsonFile = sizes) -> JsonFile:
        return next((place for place in (nested, config) if place.has(key)), default)

    if part("markov_head_type").text("markov_head_type", "vanilla") not in ("vanilla", "gated"):
        raise config.wrong("markov_head_type", "'vanilla' or 'gated': forerun runs no other")
    body = _read_body(sizes, config, shapes)
    target_hidden_size = config.integer("target_hidden_size", body.hidden_size)
    num_taps = _num_taps(config, shapes, target_hidden_size)
    ids = _tapped(part("target_layer_ids"), "target_layer_ids", num_taps, first=0)
    if ids is None:  # speculators counts the layer whose input it is
        ids = tuple(layer - 1 for layer in _tapped(config, "aux_hidden_state_layer_ids", num_taps, first=1) or ())
    if not ids:
        raise config.missing("aux_hidden_state_layer_ids") if is_nested else nested.missing("target_layer_ids")
    causal = part("is_causal")
    windows, is_causal = _layer_kinds(
        sizes, body.num_layers, causal.flag("is_causal") if causal.has("is_causal") else None
    )
    has_pairs = "candidate_selector.hidden_projection.weight" in shapes
    has_conv = "layers.0.attention_conv.base_kernel" in shapes
    return DFlashSpec(
        body=body,
        target_hidden_size=target_hidden_size,
        layer_ids=ids,
        block_size=part("block_size").integer("block_size", least=2, most=MAX_BLOCK),
        mask_token_id=part("mask_token_id", config if is_nested else nested).integer("mask_token_id", least=0),
        windows=windows,
        is_causal=is_causal,
        embedding_scale=part("input_embedding_scale").number("input_embedding_scale", 1.0),
        logit_scale=part("output_multiplier").number("output_multiplier", 1.0),
        logit_cap=part("final_logit_softcapping").number("final_logit_softcapping", 0.0, least=0.0),
        conv_kernel=part("conv_kernel_size").integer("conv_kernel_size", 2) if has_conv else 0,
        conv_group=part("conv_group_size").integer("conv_group_size", 16) if has_conv else 0,
        pair_rank=part("selector_rank").integer("selector_rank", 256) if has_pairs else 0,
        num_pairs=part("selector_top_k").integer("selector_top_k", 16) if has_pairs else 0,
        markov_rank=(shapes.get("markov_head.markov_w1.weight") or (0,))[-1],
        has_markov_gate="markov_head.gate_proj.weight" in shapes,
        drafts_from_root=part("sample_from_anchor").flag("sample_from_anchor", drafts_from_root),
    )


def _read_body(sizes: JsonFile, config: JsonFile, shapes: Shapes) -> ModelSpec:
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


def _num_taps(config: JsonFile, shapes: Shapes, target_hidden_size: int) -> int:
    num_taps, rest = divmod(shapes[FC][1], target_hidden_size)
    if rest or not num_taps:
        raise config.wrong(
            "target_hidden_size", f"a divisor of {shapes[FC][1]}: so many columns has {FC}, for features of this size"
        )
    return num_taps


def _tapped(config: JsonFile, key: str, num_taps: int, *, first: int) -> tuple[int, ...] | None:
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


def _layer_kinds(
    sizes: JsonFile, num_layers: int, is_causal: bool | None
) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """For each layer its window, and whether it is causal: sliding layers are, unless `is_causal` says otherwise."""
    kinds = sizes.values.get("layer_types") or ["full_attention"] * num_layers
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list | tuple) or len(kinds) != num_layers or any(kind not in known for kind in kinds):
        raise sizes.wrong("layer_types", f"a list of {num_layers} times {' or '.join(map(repr, known))}")
    slides = [kind == "sliding_attention" for kind in kinds]
    window = sizes.integer("sliding_window") if any(slides) else None
    return (
        tuple(window if sliding else None for sliding in slides),
        tuple(sliding if is_causal is None else is_causal for sliding in slides),
    )
