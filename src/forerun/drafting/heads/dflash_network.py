"""A DFlash head: one pass over a block of masked rows predicts the next tokens at once. DFlash 2 adds convolutions
around the sublayers, and scores of pairs of consecutive tokens; DSpark shifts the logits by the token before.

Legend: T rows, B rows of the block, S slots, H hidden size of the head, F features of a token, G size of a feature,
O taps of a convolution, C groups of channels, W rows of the output, P tokens that are paired, R size of a token's code.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from forerun.core.head_spec import DFlashSpec
from forerun.drafting.heads.executor import HeadExecutor, rotations, without_waking
from forerun.drafting.heads.layer import Embed, HeadLayer, HeadWeights, Linear, attend, rms
from forerun.model.executor import Observer
from forerun.model.inputs import ForwardInput
from forerun.model.outputs import ForwardOutput
from forerun.model.tree_cache import TreeCache
from forerun.runtime.inference import inference

Mix: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # a layer's queries, keys and values to its mixture


class DFlashHead:
    """The formulas of a head; where keys and values are kept is the caller's business.

    The first row of the block holds the last committed token; see `DFlashSpec.drafts_from_root` for what rows predict.

    Args:
        weights, embed, head: see `EagleHead`.
    """

    def __init__(self, spec: DFlashSpec, weights: HeadWeights, embed: Embed, head: Linear) -> None:
        self.spec = spec
        self._weights = weights
        self._embed = embed
        self._head = head
        self._fc = weights.linear("fc")
        if spec.conv_kernel:
            self._dynamic = {
                f"layers.{idx}.{name}": weights.linear(f"layers.{idx}.{name}.kernel_projection")
                for idx in range(spec.body.num_layers)
                for name in ("attention_conv", "mlp_conv")
            }
        if spec.markov_rank:
            self._shift = weights.linear("markov_head.markov_w2")
        if spec.has_markov_gate:
            self._gate = weights.linear("markov_head.gate_proj")
        self._layers = [HeadLayer(weights, f"layers.{idx}.", spec.body) for idx in range(spec.body.num_layers)]

    def states(self, features: Tensor) -> Tensor:
        """[..., T, H], what the head reads of the target's features [..., T, F, G]."""
        return self._norm("hidden_norm.weight", self._fc(features.flatten(-2)))

    def text_kv(self, states: Tensor, cos_sin: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Every layer's keys and values of committed tokens, which are made from the states as they are."""
        return [layer.qkv(states, cos_sin)[1:] for layer in self._layers]

    def block(self, ids: Tensor, cos_sin: Tensor, mix: Mix) -> Tensor:
        """The normalised outputs [..., B, H] of a block of tokens.

        Args:
            mix: attention of the block to the text and to itself, given the index of a layer.
        """
        stream = self._embed(ids) * self.spec.embedding_scale
        for idx, layer in enumerate(self._layers):
            x = layer.norm("input_layernorm", stream)
            entering, leaving = self._convolutions(f"layers.{idx}.attention_conv", x)
            stream = stream + leaving(layer.attended(mix(idx, *layer.qkv(entering(x), cos_sin))))
            x = layer.norm("post_attention_layernorm", stream)
            entering, leaving = self._convolutions(f"layers.{idx}.mlp_conv", x)
            stream = stream + leaving(layer.mlp(entering(x)))
        return self._norm("norm.weight", stream)

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., T, W] of normalised outputs."""
        logits = self._head(outputs) * self.spec.logit_scale
        cap = self.spec.logit_cap
        return cap * (logits / cap).tanh() if cap else logits

    def logits_after(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """Logits [T, W] given each row's parent token, in float32 at least if the head looks at it."""
        if self.spec.pair_rank:
            return self._paired(logits_TW, outputs_TH, parents_T)
        return self._shifted(logits_TW, outputs_TH, parents_T) if self.spec.markov_rank else logits_TW

    def _shifted(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """Logits shifted by the parent's code. Source: speculators' dspark/model_definitions.py."""
        codes_TR = self._weights["markov_head.markov_w1.weight"][parents_T]
        if self.spec.has_markov_gate:
            codes_TR = codes_TR * self._gate(torch.cat((outputs_TH, codes_TR), -1)).sigmoid()
        return logits_TW.to(torch.promote_types(logits_TW.dtype, torch.float32)) + self._shift(codes_TR)

    def _paired(self, logits_TW: Tensor, outputs_TH: Tensor, parents_T: Tensor) -> Tensor:
        """The logits of the best tokens with the score of the pair, and no others."""
        weights = self._weights
        part = "candidate_selector."
        best_TP, ids_TP = logits_TW.to(torch.promote_types(logits_TW.dtype, torch.float32)).topk(
            min(self.spec.num_pairs, logits_TW.shape[1])
        )
        asked_TR = functional.linear(outputs_TH, weights[part + "hidden_projection.weight"])
        asked_TR = asked_TR * weights[part + "predecessor_codebook"][parents_T]
        pairs_TP = (weights[part + "successor_codebook"][ids_TP] @ asked_TR[..., None]).squeeze(-1)
        return torch.full_like(logits_TW, -math.inf, dtype=best_TP.dtype).scatter(1, ids_TP, best_TP + pairs_TP)

    def _convolutions(self, name: str, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """The convolutions before and after a sublayer, whose weights depend on its input x [..., B, H]."""
        spec = self.spec
        if not spec.conv_kernel:
            return same, same
        base_2OH = self._weights[f"{name}.base_kernel"]
        flat = self._dynamic[name](x)
        dynamic = flat.view(*flat.shape[:-1], 2, spec.conv_kernel, -1)  # [..., B, 2, O, C]

        def convolved(side: int, rows: Tensor) -> Tensor:
            weights = base_2OH[side] + dynamic[..., side, :, :].repeat_interleave(spec.conv_group, -1)  # [..., B, O, H]
            shifted = [
                functional.pad(rows, (0, 0, tap, 0))[..., : rows.shape[-2], :] for tap in range(spec.conv_kernel)
            ]
            return (torch.stack(shifted, -2) * weights).sum(-2)

        return lambda rows: convolved(0, rows), lambda rows: convolved(1, rows)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self._weights[name], self.spec.body.norm_eps)


def same(rows: Tensor) -> Tensor:
    """The rows as they are."""
    return rows


class DFlashExecutor(HeadExecutor):
    """A DFlash head with its cache, which holds keys and values of committed tokens alone.

    The token at place p of the text stands in slot p.
    """

    def __init__(self, head: DFlashHead, cache: TreeCache) -> None:
        super().__init__(head.spec.body, cache, head.states)
        self.head = head
        self.cos_sin_P2D = rotations(head.spec.body, cache)

    def run(self, inputs: ForwardInput, observe: Observer | None = None) -> ForwardOutput:
        """One pass of a block behind the text; see `predict`."""
        ids_B = self.ids(inputs.token_ids)
        places_B = self.ids(inputs.positions)
        with inference():
            return without_waking(len(ids_B), lambda: self.predict(ids_B, places_B, inputs.num_slots))

    def predict(self, ids_B: Tensor, places_B: Tensor, num_seen: int) -> ForwardOutput:
        """One pass of a block behind the text, whose keys and values stand in the slots behind it until text does.

        Args:
            places_B: places in a row.
            num_seen: slots that are looked at; the block's are among them.

        Returns:
            logits [D, W] for the D tokens behind the text that the head predicts, and as `features` their outputs.
        """
        places_S = torch.arange(num_seen, device=self.device)
        is_behind_S = places_S >= places_B[0]
        is_there_S = torch.where(is_behind_S, places_S <= places_B[-1], self.is_known_S[:num_seen])

        def mix(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys_SKD, values_SKD = self._write(layer, places_B, k, v)
            sees_BS = self._visible(layer, places_S, places_B[:, None]) & is_there_S
            return attend(q, keys_SKD[:num_seen], values_SKD[:num_seen], sees_BS)

        outputs_BH = self.head.block(ids_B, self.cos_sin_P2D[places_B], mix)
        outputs_BH = outputs_BH[-self.head.spec.num_drafted :]
        return ForwardOutput(logits=self.head.logits(outputs_BH), features=outputs_BH[:, None])

    def compute(self, inputs: ForwardInput, states_TH: Tensor) -> ForwardOutput:
        """Write the keys and values of committed tokens."""
        places_T = self.ids(inputs.positions)
        self.write_text(states_TH, places_T, places_T)
        return ForwardOutput(logits=states_TH.new_zeros(0, 0))

    def write_text(self, states_TH: Tensor, slots_T: Tensor, places_T: Tensor) -> None:
        """Write the keys and values of tokens at these places of the text into these slots."""
        for layer, (k, v) in enumerate(self.head.text_kv(states_TH, self.cos_sin_P2D[places_T])):
            self._write(layer, slots_T, k, v)

    def _write(self, layer: int, slots_T: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        keys_SKD = self.cache.keys_LSKD[layer]
        values_SKD = self.cache.values_LSKD[layer]
        return keys_SKD.index_copy_(0, slots_T, k), values_SKD.index_copy_(0, slots_T, v)

    def _visible(self, layer: int, places_S: Tensor, own_B1: Tensor) -> Tensor:
        """bool [B, S]: the places that a layer's rows look at."""
        spec = self.head.spec
        window = spec.windows[layer]
        is_near_BS = (places_S - own_B1).abs() < (len(places_S) if window is None else window)
        return is_near_BS & (places_S <= own_B1) if spec.is_causal[layer] else is_near_BS
