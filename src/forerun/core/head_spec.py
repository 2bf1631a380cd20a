"""Sizes and options of draft heads: small networks that read the target's own features (EAGLE-3, DFlash, DFlash 2,
DSpark, assistants of Gemma 4)."""

from dataclasses import dataclass
from typing import TypeAlias

from forerun.core.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleSpec:
    """An EAGLE-3 head (arXiv 2503.01840): it predicts the token after the next one from a feature and the next token.

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

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """The layers of a target of `num_layers` whose outputs the head reads, in the order of the columns of `fc`.

        A layer's input is the output of the layer before it. Source: EAGLE's modeling_llama_kv.py.
        """
        ids = self.layer_ids if self.layer_ids is not None else (2, num_layers // 2, num_layers - 3)
        return tuple(layer - 1 for layer in ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashSpec:
    """A DFlash head (arXiv 2602.06036), which predicts a block of tokens in one pass, or one of its successors.

    DFlash 2 has the fields from `conv_kernel` to `num_pairs`, DSpark (arXiv 2607.05147) those after them.

    Args:
        body: sizes of its layers.
        target_hidden_size: size of the target's features.
        layer_ids: the target's layers whose outputs are its features, in the order of the columns of `fc`.
        block_size: rows of a pass; the first holds the last committed token.
        mask_token_id: the token of the other rows.
        windows: for each layer the size of its sliding window in tokens; None: it sees everything.
        is_causal: for each layer whether a row sees no later row of the block.
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
        """How many features a token has."""
        return len(self.layer_ids)

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """The target's layers whose outputs the head reads, in the order of the columns of `fc`."""
        return self.layer_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantSpec:
    """An assistant of Gemma 4: it has only queries, which attend to the target's own keys and values, and a recurrent
    state, which begins with the target's last hidden state after its final norm.

    Args:
        body: sizes of its layers, of which none has keys or values.
        target_hidden_size: size of that state, and of the target's embedding.
        num_centroids, num_active: groups of tokens of equal size, each with a centroid, and how many groups, the
            nearest to a row, have logits; 0: all tokens have.
    """

    body: ModelSpec
    target_hidden_size: int
    num_centroids: int = 0
    num_active: int = 0
    num_taps: int = 1

    def layer_of(self, target: ModelSpec, layer: int) -> int:
        """The target's layer whose keys and values a layer attends to: the last of its kind that has its own; -1 if
        there is none."""
        return target.last_owner(slides=layer in self.body.sliding_layers)

    def taps(self, num_layers: int) -> tuple[int, ...]:
        """The target's last layer; the head itself applies the target's final norm to its output."""
        return (num_layers - 1,)


MadeSpec: TypeAlias = EagleSpec | DFlashSpec  # of heads that can be made here, see `distill`
HeadSpec: TypeAlias = MadeSpec | AssistantSpec
