"""EAGLE-3 heads (arXiv 2503.01840). Sources: EAGLE's cnets.py; SpecForge's llama3_eagle.py; speculators'
eagle3/config.py; llama.cpp's src/models/eagle3.cpp."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.config import NESTED_KEY, SPECULATORS_KEY, has_fc, num_taps_of, read_body, tapped_layers
from forerun.drafting.heads.gguf import entered_layers, read_gguf_body
from forerun.drafting.heads.kind import GgufForm, HeadKind, HeadSpec, Shape, Shapes, StoredHead, features_text
from forerun.drafting.heads.tensors import common_shapes, layer_shapes, optional_shapes, require_tokens

IDS_KEY: Final = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSpec(HeadSpec):
    """It predicts the token after the next one from a feature and the next token.

    Args:
        body: sizes of its layers; `vocab_size` counts the rows of its output, which are a part of the target's tokens
            if the head has a map.
        target_hidden_size: size of the target's features.
        layer_ids: the target's layers whose inputs are its features, in the order of the columns of `fc`; None: the
            usual three, see `taps`.
        num_taps: how many features a token has.
        norms_each: every feature is normalised before `fc`, with its own weight (EAGLE-3.1's `fc_norm`).
        norms_all: all features together are normalised before `fc` (`norm_before_fc`).
        norms_residual: the residual stream begins with the normalised feature (`norm_before_residual`).
        norms_logits: the last norm is applied before the logits.
        norms_state: the last norm is also applied to the feature that the head gives to its own next step.
    """

    body: ModelSpec
    target_hidden_size: int
    layer_ids: tuple[int, ...] | None
    num_taps: int = 3
    norms_each: bool = False
    norms_all: bool = False
    norms_residual: bool = False
    norms_logits: bool = True
    norms_state: bool = False

    @property
    def label(self) -> str:
        return "EAGLE-3"

    @property
    def reads(self) -> str:
        is_usual = self.layer_ids is None
        return features_text(
            self.num_taps, "1, L // 2 - 1 and L - 4 of L layers" if is_usual else str(list(self.taps(0)))
        )

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """A layer's input is the output of the layer before it. Source: EAGLE's modeling_llama_kv.py."""
        ids = self.layer_ids if self.layer_ids is not None else (2, num_layers // 2, num_layers - 3)
        return tuple(layer - 1 for layer in ids)

    def needed_shapes(self) -> Iterator[tuple[str, Shape]]:
        hidden = self.body.hidden_size
        yield from common_shapes(self)
        yield "layers.0.hidden_norm.weight", (hidden,)
        yield from layer_shapes(self.body, "layers.0.", 2 * hidden)
        for idx in range(1, self.body.num_layers):
            yield from layer_shapes(self.body, f"layers.{idx}.", hidden)
        if self.norms_each:
            yield from ((f"fc_norm.{idx}.weight", (self.target_hidden_size,)) for idx in range(self.num_taps))
        if self.norms_all:
            yield "input_norm.weight", (self.num_taps * self.target_hidden_size,)

    def allowed_shapes(self, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
        return optional_shapes(self, shapes)

    def require_fit(self, stored: StoredHead, target: ModelSpec, target_name: str) -> None:
        require_tokens(stored, target, target_name)


def _recognises(config: JsonFile, shapes: Shapes) -> bool:
    return has_fc(shapes) and config.text(SPECULATORS_KEY, "eagle3") == "eagle3"


def _read(config: JsonFile, shapes: Shapes) -> EagleSpec:
    nested = config.nested("eagle_config")
    is_nested = config.has(SPECULATORS_KEY)
    if not nested.flag("use_aux_hidden_state", True):
        raise nested.wrong("use_aux_hidden_state", "true: heads that read only the last hidden state are not supported")
    body = read_body(config.nested(NESTED_KEY) if is_nested else config, config, shapes)
    target_hidden_size = config.integer("target_hidden_size", body.hidden_size)
    has_state_norm = config.flag("norm_output", not is_nested)
    num_taps = num_taps_of(config, shapes, target_hidden_size)
    return EagleSpec(
        body=body,
        target_hidden_size=target_hidden_size,
        layer_ids=tapped_layers(config if config.has(IDS_KEY) else nested, IDS_KEY, num_taps, first=1),
        num_taps=num_taps,
        norms_each="fc_norm.0.weight" in shapes,
        norms_all="input_norm.weight" in shapes,
        norms_residual=config.flag("norm_before_residual", is_nested),
        # The same key means that the logits are normalised, or, in speculators, the state for the head's next step.
        norms_logits=is_nested or has_state_norm,
        norms_state=is_nested and has_state_norm,
    )


def _read_gguf(file: GgufFile, keys: JsonFile, tensors: Mapping[str, StoredTensor]) -> EagleSpec:
    body = read_gguf_body(file, keys, tensors)
    ids = entered_layers(keys, "target_layers" if keys.has("target_layers") else "extract_layers")
    keys.integer("block_count", most=1)
    return EagleSpec(
        body=body,
        target_hidden_size=keys.integer("target_hidden_size", body.hidden_size),
        layer_ids=ids,
        num_taps=len(ids),
        norms_all="input_norm.weight" in tensors,
        norms_residual=keys.flag("norm_before_residual", False),
    )


EAGLE: Final = HeadKind(
    plural="EAGLE-3 heads",
    is_named=lambda config: config.has("draft_vocab_size"),
    recognises=_recognises,
    read=_read,
    network="eagle_network",
    gguf=GgufForm(
        architecture="eagle3",
        read=_read_gguf,
        names={"enc.output_norm.weight": "input_norm.weight"},
        rotates_pairs=True,
    ),
)
