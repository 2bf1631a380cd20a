"""Gemma 4's assistants. Source: transformers' gemma4_assistant."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from forerun.checkpoints.huggingface.config import model_spec_of
from forerun.checkpoints.safetensors.stored_bytes import read_ids
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.json_file import JsonFile
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.kind import HeadKind, HeadSpec, Shape, Shapes, StoredHead
from forerun.drafting.heads.tensors import OUTPUT, TABLE

if TYPE_CHECKING:
    from torch import Tensor

MODEL_TYPES: Final = ("gemma4_assistant", "gemma4_unified_assistant")
ORDER: Final = "masked_embedding.token_ordering"  # the tokens of each centroid in turn
NORMS: Final = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantSpec(HeadSpec):
    """It has only queries, which attend to the target's own keys and values, and a recurrent state, which begins with
    the target's last hidden state after its final norm.

    Args:
        body: sizes of its layers, of which none has keys or values.
        target_hidden_size: size of that state, and of the target's embedding.
        num_centroids, num_active: groups of tokens of equal size, each with a centroid, and how many groups, the
            nearest to a row, have logits; 0: all tokens have.
    """

    id_tensors: ClassVar[tuple[str, ...]] = (ORDER,)
    body: ModelSpec
    target_hidden_size: int
    num_centroids: int = 0
    num_active: int = 0
    num_taps: int = 1

    @property
    def label(self) -> str:
        return "Gemma 4 assistant"

    @property
    def reads(self) -> str:
        return "the target's keys and values, and its last hidden state"

    def layer_of(self, target: ModelSpec, layer: int) -> int:
        """The target's layer whose keys and values a layer attends to: the last of its kind that has its own; -1 if
        there is none."""
        return target.last_owner(slides=layer in self.body.sliding_layers)

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """The target's last layer; the head itself applies the target's final norm to its output."""
        return (num_layers - 1,)

    def needed_shapes(self) -> Iterator[tuple[str, Shape]]:
        body = self.body
        hidden = body.hidden_size
        yield "pre_projection.weight", (hidden, 2 * self.target_hidden_size)
        yield "post_projection.weight", (self.target_hidden_size, hidden)
        yield TABLE, (body.vocab_size, hidden)
        yield "norm.weight", (hidden,)
        if self.num_centroids:
            yield "masked_embedding.centroids.weight", (self.num_centroids, hidden)
            yield ORDER, (body.vocab_size,)
        for idx in range(body.num_layers):
            part = f"layers.{idx}."
            one = body.of_layer(idx)
            yield from ((f"{part}{name}.weight", (hidden,)) for name in NORMS)
            yield f"{part}layer_scalar", (1,)
            yield f"{part}self_attn.q_proj.weight", (one.q_size, hidden)
            yield f"{part}self_attn.q_norm.weight", (one.head_dim,)
            yield f"{part}self_attn.o_proj.weight", (hidden, one.q_size)
            yield f"{part}mlp.gate_proj.weight", (one.intermediate_size, hidden)
            yield f"{part}mlp.up_proj.weight", (one.intermediate_size, hidden)
            yield f"{part}mlp.down_proj.weight", (hidden, one.intermediate_size)

    def allowed_shapes(self, shapes: Shapes) -> Iterator[tuple[str, Shape]]:
        yield OUTPUT, (self.body.vocab_size, self.body.hidden_size)

    def require_fit(self, stored: StoredHead, target: ModelSpec, target_name: str) -> None:
        """Refuse a target whose keys and values it cannot read, or whose tokens it lacks."""
        for layer in range(self.body.num_layers):
            one = self.body.of_layer(layer)
            owner = self.layer_of(target, layer)
            found = None if owner < 0 else target.of_layer(owner)
            if found is None or (found.num_kv_heads, found.head_dim) != (one.num_kv_heads, one.head_dim):
                raise CheckpointError(
                    f"layer {layer} of the head {stored.name} reads {one.num_kv_heads} heads of size {one.head_dim} of "
                    f"the target's keys, which {target_name} does not have: choose the head of this model"
                )
        if self.body.vocab_size > target.vocab_size:
            raise VocabularyError(
                f"the head {stored.name} drafts {self.body.vocab_size} tokens, but {target_name} has only "
                f"{target.vocab_size}: choose the head of this model"
            )


def token_order(stored: StoredHead) -> "Tensor | None":
    """int64 [V], the tokens of an assistant's centroids, those of the first one first; None if it has none.

    Raises:
        CheckpointError: a token is missing.
    """
    if ORDER not in stored.ids:
        return None
    ids = read_ids(stored.ids[ORDER])
    if sorted(ids.tolist()) != list(range(stored.spec.body.vocab_size)):
        raise CheckpointError(f"{stored.ids[ORDER].path}: {ORDER} must name every token once: fetch the head again")
    return ids


def _is_assistant(config: JsonFile) -> bool:
    return config.values.get("model_type") in MODEL_TYPES


def _read(config: JsonFile, shapes: Shapes) -> AssistantSpec:
    text = config.nested("text_config")
    if text.integer("hidden_size_per_layer_input", 256, least=0):
        raise text.wrong("hidden_size_per_layer_input", "0: an assistant has no embeddings for each layer")
    # All layers borrow keys, unlike in a whole model; the target decides which of its layers they attend to.
    body = model_spec_of(replace(text, values={**text.values, "num_kv_shared_layers": 0, "use_double_wide_mlp": False}))
    is_ordered = config.flag("use_ordered_embeddings", False)
    num_centroids = config.integer("num_centroids", 2048) if is_ordered else 0
    if is_ordered and body.vocab_size % num_centroids:
        raise config.wrong("num_centroids", f"a divisor of vocab_size ({body.vocab_size})")
    return AssistantSpec(
        body=body,
        target_hidden_size=config.integer("backbone_hidden_size", 1536),
        num_centroids=num_centroids,
        num_active=config.integer("centroid_intermediate_top_k", 32, most=num_centroids) if is_ordered else 0,
    )


ASSISTANT: Final = HeadKind(
    plural="assistants of Gemma 4",
    is_named=_is_assistant,
    recognises=lambda config, _: _is_assistant(config),
    read=_read,
    network="assistant_network",
)
