"""An EAGLE-3 head: one step predicts the token after the next, from the target's features or from its own last state.

Legend: T rows, S slots, H hidden size of the head, F features of a token, G size of a feature, K key/value heads,
D head size, W rows of the head's output; dots stand for texts.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from forerun.core.head_spec import EagleSpec
from forerun.drafting.heads.executor import HeadExecutor, rotations
from forerun.drafting.heads.layer import Embed, HeadLayer, HeadWeights, Linear, attend, rms
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.tree_cache import TreeCache

Mix: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # a layer's queries, keys and values to its mixture


class EagleHead:
    """What a head computes before and after its layers.

    The row of a token at place p reads the token, and the feature of place p - 1; it predicts the token at p + 1.

    Args:
        weights: by their published names, with the first layer as "layers.0.".
        embed: the embedding of the target's tokens.
        output: H to W.
    """

    def __init__(self, spec: EagleSpec, weights: HeadWeights, embed: Embed, output: Linear) -> None:
        self.spec = spec
        self.embed = embed
        self.output = output
        self._weights = weights
        self._fc = weights.linear("fc")

    def states(self, features: Tensor) -> Tensor:
        """[..., T, H], what the head reads of the target's features [..., T, F, G]."""
        spec = self.spec
        if spec.norms_each:
            each = [self._norm(f"fc_norm.{idx}.weight", feature) for idx, feature in enumerate(features.unbind(-2))]
            features = torch.stack(each, -2)
        flat = features.flatten(-2)
        if spec.norms_all:
            flat = self._norm("input_norm.weight", flat)
        return self._fc(flat)

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., T, W] of the last layer's outputs."""
        return self.output(self._normed(outputs) if self.spec.norms_logits else outputs)

    def next_states(self, outputs: Tensor) -> Tensor:
        """The states [..., T, H] from which the next tokens' rows start, where the target's features are not known."""
        return self._normed(outputs) if self.spec.norms_state else outputs

    def _normed(self, outputs: Tensor) -> Tensor:
        return self._norm("norm.weight", outputs)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._weights[name], self.spec.body.norm_eps)


class TorchEagleHead(EagleHead):
    """A head with its layers in torch; where keys and values are kept is the caller's business."""

    def __init__(self, spec: EagleSpec, weights: HeadWeights, embed: Embed, output: Linear) -> None:
        super().__init__(spec, weights, embed, output)
        self._layers = [HeadLayer(weights, f"layers.{idx}.", spec.body) for idx in range(spec.body.num_layers)]

    def step(self, ids: Tensor, states: Tensor, cos_sin: Tensor, mix: Mix) -> Tensor:
        """The last layer's output [..., T, H] for tokens [..., T] and states [..., T, H].

        Args:
            cos_sin: [..., T, 2, D], the rotations at the rows' places.
            mix: attention, given the index of a layer.
        """
        first, *others = self._layers
        normed = first.norm("hidden_norm", states)
        embedded = first.norm("input_layernorm", self.embed(ids))
        stream = normed if self.spec.norms_residual else states
        stream = stream + first.attended(mix(0, *first.qkv(torch.cat((embedded, normed), -1), cos_sin)))
        stream = stream + first.mlp(first.norm("post_attention_layernorm", stream))
        for idx, layer in enumerate(others, 1):
            mixed = mix(idx, *layer.qkv(layer.norm("input_layernorm", stream), cos_sin))
            stream = stream + layer.attended(mixed)
            stream = stream + layer.mlp(layer.norm("post_attention_layernorm", stream))
        return stream


class EagleExecutor(HeadExecutor):
    """An EAGLE-3 head in torch, with its cache."""

    def __init__(self, head: TorchEagleHead, cache: TreeCache) -> None:
        super().__init__(head.spec.body, cache, head.states)
        self.head = head
        self.cos_sin_P2D = rotations(head.spec.body, cache)

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """One pass; `features` of its output are the rows' next states, [T, 1, H]."""
        first = inputs.first_slot
        end = inputs.num_slots
        sees_TS = self._visible(inputs)

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_SKD = self.cache.keys_LSKD[layer]
            values_SKD = self.cache.values_LSKD[layer]
            keys_SKD[first:end] = k
            values_SKD[first:end] = v
            return attend(q, keys_SKD[:end], values_SKD[:end], sees_TS)

        outputs_TH = self.head.step(
            self.ids(inputs.token_ids), states_TH, self.cos_sin_P2D[self.ids(inputs.positions)], mix
        )
        logits = self.head.logits(outputs_TH[len(outputs_TH) - inputs.num_logit_rows :])
        return ForwardOutput(logits=logits, features=self.head.next_states(outputs_TH)[:, None])

    def _visible(self, inputs: ForwardInput) -> Tensor:
        """bool [T, S]: the slots that every row attends to."""
        if inputs.ancestry is not None:
            text_TS = self.is_known_S[: inputs.prefix_len].expand(len(inputs.token_ids), -1)
            return torch.cat((text_TS, torch.from_numpy(inputs.ancestry).to(self.device)), 1)
        slots_S = torch.arange(inputs.num_slots, device=self.device)
        return self.is_known_S[: inputs.num_slots] & (slots_S <= slots_S[inputs.first_slot :, None])
