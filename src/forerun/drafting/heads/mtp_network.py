"""Qwen3.5's own draft head: its formulas and its drafter. Rows and passes are those of EAGLE-3 heads.

Legend: T rows, H hidden size, D head size, Q query heads, W tokens; dots stand for texts.
"""

import torch
from torch import Tensor

from forerun.core.drafter_config import DraftHead
from forerun.drafting.draft_model import UsualAcceptance, serial_rows
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.eagle_network import EagleExecutor, EagleRows, Mix
from forerun.drafting.heads.kind import StoredHead
from forerun.drafting.heads.layer import Embed, HeadLayer, HeadWeights, Linear, rms
from forerun.drafting.heads.loading import HeadLoading, load_with_cache
from forerun.drafting.heads.mtp import LAYER, MtpSpec
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache


class MtpHead:
    """The head's formulas. The row of a token at place p reads the token, and the state of place p - 1; it predicts the
    token at p + 1.

    Args:
        weights: by our names.
        embed: the embedding of the target's tokens.
        output: the target's last linear layer, H to W.
        final_norm_H: the weight of the target's final norm.
    """

    def __init__(self, spec: MtpSpec, weights: HeadWeights, embed: Embed, output: Linear, final_norm_H: Tensor) -> None:
        self.spec = spec
        self._weights = weights
        self._embed = embed
        self._output = output
        self._final_norm_H = final_norm_H
        self._fc = weights.linear("fc")
        self._gate = weights.linear(f"{LAYER}self_attn.q_proj_gate") if spec.gates_attention else None
        self._layer = HeadLayer(weights, LAYER, spec.body)

    def states(self, features: Tensor) -> Tensor:
        """[..., T, H], the target's last hidden states behind its final norm."""
        return rms(features[..., 0, :], self._final_norm_H, self.spec.body.norm_eps)

    def step(self, ids: Tensor, states: Tensor, cos_sin: Tensor, mix: Mix) -> Tensor:
        """The layer's output [..., T, H]; see `TorchEagleHead.step`."""
        layer = self._layer
        embedded = self._norm("embedding_norm", self._embed(ids))
        stream = self._fc(torch.cat((embedded, self._norm("hidden_norm", states)), -1))
        normed = layer.norm("input_layernorm", stream)
        mixed = mix(0, *layer.qkv(normed, cos_sin))
        if self._gate is not None:
            mixed = mixed * torch.sigmoid(self._gate(normed))
        stream = stream + layer.attended(mixed)
        return stream + layer.mlp(layer.norm("post_attention_layernorm", stream))

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., T, W] of the layer's outputs."""
        return self._output(self.next_states(outputs))

    def next_states(self, outputs: Tensor) -> Tensor:
        """The states [..., T, H] from which the next tokens' rows start, where the target's are not known."""
        return self._norm("norm", outputs)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._weights[f"{name}.weight"], self.spec.body.norm_eps)


class MtpDrafter(HeadDrafter):
    """Grows its tree with the head, one pass for each batch of nodes."""

    usual_acceptance = UsualAcceptance(kind="a model's own draft head", low=60, high=90, floor=35)

    def _make_rows(self, runner: Runner, config: DraftHead) -> EagleRows:
        executor = runner.executor
        assert isinstance(executor, EagleExecutor), f"the executor of a head, not {type(executor)}"
        return EagleRows(runner, executor, self._features, serial_rows(config.shape))


def load(stored: StoredHead, given: HeadLoading) -> HeadDrafter:
    """The drafter of a head for the target in whose files it is."""
    spec = stored.spec
    assert isinstance(spec, MtpSpec), "a model's own head"
    final_norm_H = given.source.weights(dtype=given.dtype, device=given.device).vector("final_norm")

    def make_executor(
        sized: MtpSpec, weights: HeadWeights, embed: Embed, output: Linear, cache: TreeCache
    ) -> EagleExecutor:
        dtype = cache.dtype
        return EagleExecutor(MtpHead(sized, weights, embed, output, final_norm_H.to(dtype)), cache)

    num_behind = serial_rows(given.config.shape)
    return load_with_cache(stored, given, spec, num_behind=num_behind, make_executor=make_executor, drafter=MtpDrafter)
