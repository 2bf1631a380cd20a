"""DFlash heads (arXiv 2602.06036) and their successors, DFlash 2 and DSpark (arXiv 2607.05147).

Sources: dflash/model.py; speculators' dspark/config.py; llama.cpp's src/models/dflash.cpp.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.config import NESTED_KEY, SPECULATORS_KEY, has_fc, num_taps_of, read_body, tapped_layers
from forerun.drafting.heads.gguf import entered_layers, read_gguf_body
from forerun.drafting.heads.kind import GgufForm, HeadKind, HeadSpec, Shape, Shapes, StoredHead
from forerun.drafting.heads.tensors import (
    common_shapes,
    layer_shapes,
    num_table_rows,
    optional_shapes,
    require_tokens,
)

ALGORITHMS: Final = ("dflash", "dflash2", "dspark")  # their names in the speculators library
SHIFTS: Final = "markov_head.markov_w2.weight"  # of the logits, by the parent's code
MAX_SIZE: Final = 128  # rows of a tree, beyond which no drafted token can be verified


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashSpec(HeadSpec):
    """It predicts several tokens in one pass over the last committed token and masked rows behind it.

    DFlash 2 has the fields from `conv_kernel` to `num_pairs`, DSpark those after them.

    Args:
        body: sizes of its layers.
        target_hidden_size: size of the target's features.
        layer_ids: the target's layers whose outputs are its features, in the order of the columns of `fc`.
        block_size: rows of a pass, as configs call it; the first holds the last committed token.
        mask_token_id: the token of the other rows.
        windows: for each layer the size of its sliding window in tokens; None: it sees everything.
        is_causal: for each layer whether a row sees no later row of the pass.
        embedding_scale, logit_scale, logit_cap: factors on the embeddings and logits, and the bound that tanh gives
            the logits; 0: none.
        conv_kernel, conv_group: taps of the convolutions around each sublayer, and channels that share their dynamic
            weights; 0: there are none.
        pair_rank, num_pairs: size of the codes by which pairs of tokens are scored, and how many of the likeliest
            tokens are scored; 0: there is no such score.
        markov_rank: size of the codes by which a token's parent shifts its logits; 0: it does not.
        has_markov_gate: a gate that depends on the row scales the parent's code.
        drafts_from_root: every row predicts the token after its own, the first one too; else each predicts the token
            at its own position, and the first predicts nothing.
    """

    body: ModelSpec
    target_hidden_size: int
    layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    windows: tuple[int | None, ...]
    is_causal: tuple[bool, ...]
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    conv_kernel: int = 0
    conv_group: int = 0
    pair_rank: int = 0
    num_pairs: int = 0
    markov_rank: int = 0
    has_markov_gate: bool = False
    drafts_from_root: bool = False

    @property
    def num_drafted(self) -> int:
        """How many tokens in a row are predicted."""
        return self.block_size if self.drafts_from_root else self.block_size - 1

    @property
    def num_taps(self) -> int:
        return len(self.layer_ids)

    @property
    def label(self) -> str:
        return "DFlash 2" if self.pair_rank else "DSpark" if self.markov_rank else "DFlash"

    @property
    def own_rows(self) -> list[tuple[str, str]]:
        return [("drafts", f"{self.num_drafted} tokens in one pass")]

    def taps(self, num_layers: int) -> tuple[int, ...]:
        return self.layer_ids

    def needed_shapes(self) -> Iterator[tuple[str, Shape]]:
        hidden = self.body.hidden_size
        yield from common_shapes(self)
        yield "hidden_norm.weight", (hidden,)
        for idx in range(self.body.num_layers):
            part = f"layers.{idx}."
            yield from layer_shapes(self.body, part, hidden)
            for name in ("attention_conv", "mlp_conv") if self.conv_kernel else ():
                num_weights = 2 * self.conv_kernel * hidden // self.conv_group
                yield f"{part}{name}.base_kernel", (2, self.conv_kernel, hidden)
                yield f"{part}{name}.kernel_projection.weight", (num_weights, hidden)
        if self.pair_rank:
            yield "candidate_selector.hidden_projection.weight", (self.pair_rank, hidden)
        if self.markov_rank:
            yield SHIFTS, (self.body.vocab_size, self.markov_rank)
        if self.has_markov_gate:
            yield "markov_head.gate_proj.weight", (self.markov_rank, hidden + self.markov_rank)
            yield "markov_head.gate_proj.bias", (self.markov_rank,)

    def allowed_shapes(self, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
        return optional_shapes(self, shapes)

    def code_tables(self) -> Iterator[tuple[str, int]]:
        if self.pair_rank:
            for name in ("predecessor", "successor"):
                yield f"candidate_selector.{name}_codebook", self.pair_rank
        if self.markov_rank:
            yield "markov_head.markov_w1.weight", self.markov_rank

    def require_sound(self, where: str) -> None:
        if self.conv_group and self.body.hidden_size % self.conv_group:
            raise CheckpointError(
                f"{where}: conv_group_size is {self.conv_group}, but must be a divisor of the head's hidden size, "
                f"{self.body.hidden_size}: fetch the head again"
            )

    def require_fit(self, stored: StoredHead, target: ModelSpec, target_name: str) -> None:
        require_tokens(stored, target, target_name, by_output=(SHIFTS,))
        num_rows = num_table_rows(stored, target)
        if self.mask_token_id >= num_rows:
            raise VocabularyError(
                f"the head {stored.name} masks with token {self.mask_token_id}, but the embedding has only {num_rows} "
                f"tokens: choose the head of {target_name}"
            )


def _recognises(config: JsonFile, shapes: Shapes) -> bool:
    usual = "dflash" if "hidden_norm.weight" in shapes else ""
    return has_fc(shapes) and config.text(SPECULATORS_KEY, usual) in ALGORITHMS


def _read(config: JsonFile, shapes: Shapes) -> DFlashSpec:
    nested = config.nested("dflash_config")
    is_nested = config.has(SPECULATORS_KEY)
    sizes = config.nested(NESTED_KEY) if is_nested else config

    def part(key: str, default: JsonFile = sizes) -> JsonFile:
        return next((place for place in (nested, config) if place.has(key)), default)

    if part("markov_head_type").text("markov_head_type", "vanilla") not in ("vanilla", "gated"):
        raise config.wrong("markov_head_type", "'vanilla' or 'gated': forerun runs no other")
    body = read_body(sizes, config, shapes)
    target_hidden_size = config.integer("target_hidden_size", body.hidden_size)
    num_taps = num_taps_of(config, shapes, target_hidden_size)
    ids = tapped_layers(part("target_layer_ids"), "target_layer_ids", num_taps, first=0)
    if ids is None:  # speculators counts the layer whose input it is
        entered = tapped_layers(config, "aux_hidden_state_layer_ids", num_taps, first=1)
        ids = tuple(layer - 1 for layer in entered or ())
    if not ids:
        raise config.missing("aux_hidden_state_layer_ids") if is_nested else nested.missing("target_layer_ids")
    causal = part("is_causal")
    windows, is_causal = _layer_kinds(
        sizes, body.num_layers, causal.flag("is_causal") if causal.has("is_causal") else None
    )
    has_pairs = "candidate_selector.hidden_projection.weight" in shapes
    has_conv = "layers.0.attention_conv.base_kernel" in shapes
    is_dspark = config.text(SPECULATORS_KEY, "dflash") == "dspark"
    return DFlashSpec(
        body=body,
        target_hidden_size=target_hidden_size,
        layer_ids=ids,
        block_size=part("block_size").integer("block_size", least=2, most=MAX_SIZE),
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
        drafts_from_root=part("sample_from_anchor").flag("sample_from_anchor", is_dspark),
    )


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


def _read_gguf(file: GgufFile, keys: JsonFile, tensors: Mapping[str, StoredTensor]) -> DFlashSpec:
    body = read_gguf_body(file, keys, tensors)
    ids = entered_layers(keys, "target_layers")
    is_causal = keys.flag("attention.causal", False)
    has_pairs = "candidate_selector.hidden_projection.weight" in tensors
    has_conv = "layers.0.attention_conv.base_kernel" in tensors
    return DFlashSpec(
        body=body,
        target_hidden_size=max(1, tensors["fc.weight"].shape[-1] // len(ids)) if "fc.weight" in tensors else 1,
        layer_ids=tuple(layer - 1 for layer in ids),
        block_size=keys.integer("block_size", 16, least=2, most=MAX_SIZE),
        mask_token_id=file.section("tokenizer.ggml.").integer("mask_token_id", least=0),
        windows=_gguf_windows(keys, body.num_layers),
        is_causal=(is_causal,) * body.num_layers,
        embedding_scale=keys.number("embedding_scale", 1.0),
        logit_scale=keys.number("logit_scale", 1.0),
        logit_cap=keys.number("final_logit_softcapping", 0.0, least=0.0),
        conv_kernel=keys.integer("conv_kernel_size") if has_conv else 0,
        conv_group=keys.integer("conv_group_size") if has_conv else 0,
        pair_rank=keys.integer("selector_rank") if has_pairs else 0,
        num_pairs=keys.integer("selector_top_k") if has_pairs else 0,
        drafts_from_root=keys.flag("sample_from_anchor", False),
    )


def _gguf_windows(keys: JsonFile, num_layers: int) -> tuple[int | None, ...]:
    """The window of each layer; the pattern tells which layers have one."""
    if not keys.has("attention.sliding_window"):
        return (None,) * num_layers
    window = keys.integer("attention.sliding_window")
    key = "attention.sliding_window_pattern"
    slides = keys.values.get(key)
    if not isinstance(slides, tuple) or len(slides) != num_layers or not all(isinstance(one, bool) for one in slides):
        raise keys.wrong(key, f"a list of {num_layers} flags")
    return tuple(window if is_sliding else None for is_sliding in slides)


DFLASH: Final = HeadKind(
    plural="DFlash, DFlash 2 and DSpark heads",
    is_named=lambda config: config.has("dflash_config"),
    recognises=_recognises,
    read=_read,
    network="dflash_network",
    gguf=GgufForm(
        architecture="dflash",
        read=_read_gguf,
        names={
            "enc.output_norm.weight": "hidden_norm.weight",
            "selector_hidden.weight": "candidate_selector.hidden_projection.weight",
            "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
            "selector_successor.weight": "candidate_selector.successor_codebook",
        },
    ),
)
