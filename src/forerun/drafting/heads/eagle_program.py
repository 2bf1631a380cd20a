"""The layers of an EAGLE-3 head as a program, which a backend can run in one call, and the weights of its ops.

The first layer reads two inputs side by side, the token's embedding and the state, each with its own norm. The program
multiplies them one after the other, by the two halves of that layer's weight.

Legend: O output features, I input features.
"""

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.layer import HeadWeights
from forerun.model.program import Program, attention_ops, mlp_ops
from forerun.model.quantise import quantise
from forerun.model.weights import WHOLE, DenseWeight, Part, Table, Weight

OF_EMBEDDING: Final = "layers.0.embedded_qkv"
OF_STATE: Final = "layers.0.qkv"
LINEARS: Final = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention_out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp_out": ("mlp.down_proj",),
}
VECTORS: Final = {
    "attention_norm": "input_layernorm",
    "state_norm": "hidden_norm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def eagle_program(spec: EagleSpec) -> Program:
    """The ops from the states in x and the tokens' embeddings in h to the last layer's outputs in x."""
    body = spec.body
    normed = "x" if spec.norms_residual else "h"
    layers = [(*attention_ops(body, layer), *mlp_ops(body, layer)) for layer in range(body.num_layers)]
    norm, qkv, *rest = (op for layer in layers for op in layer)
    return (
        replace(norm, reads=("h",)),
        replace(qkv, weights=OF_EMBEDDING),
        replace(norm, writes=normed, weights="layers.0.state_norm"),
        replace(qkv, kind="linear_add", reads=(normed, "qkv"), weights=OF_STATE),
        *rest,
    )


class EagleWeights:
    """The program's weights, as a `WeightSource` without an embedding; linear layers have 8 bits."""

    def __init__(self, weights: HeadWeights, hidden_size: int) -> None:
        self._weights = weights
        self._hidden_size = hidden_size
        self._of_state: Tensor | None = None  # the second half of the first layer's weight, once the first was taken

    def table(self) -> Table:
        return DenseWeight(values_OI=torch.zeros(0, self._hidden_size))

    def linear(self, name: str, part: Part = WHOLE) -> tuple[Weight, Tensor | None]:
        assert part == WHOLE, "a head is not shared between ranks"
        if name == OF_EMBEDDING:
            both_OI, bias_O = self._stacked(OF_STATE)
            weight_OI = both_OI[:, : self._hidden_size]
            self._of_state = both_OI[:, self._hidden_size :]
        elif name == OF_STATE:
            assert self._of_state is not None, "the program reads the embedding first"
            weight_OI = self._of_state
            bias_O = None
            self._of_state = None
        else:
            weight_OI, bias_O = self._stacked(name)
        return quantise(weight_OI, "int8"), bias_O

    def vector(self, name: str) -> Tensor:
        layer, _, last = name.rpartition(".")
        return self._weights[f"{layer}.{VECTORS[last]}.weight"]

    def _stacked(self, name: str) -> tuple[Tensor, Tensor | None]:
        layer, _, last = name.rpartition(".")
        return self._weights.stacked(*(f"{layer}.{each}" for each in LINEARS[last]))
