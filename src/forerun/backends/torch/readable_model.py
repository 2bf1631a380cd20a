"""A whole Llama-like model on one page, in plain torch: what one forward pass over a token tree computes.

This is the page to read first, and the slow twin that tests compare the executors with; nothing decodes with it. It
runs Llama, Qwen2 (biases of queries, keys and values) and Qwen3 (norms of each head's queries and keys). `executor.py`
computes the same for every family, as a list of ops that other backends run too.

A row of a pass is one token of the tree. It has a *position*, its place in the text that it belongs to, and a *slot*,
its place in the cache. Siblings have the same position and different slots, so positions turn the queries and keys, and
a mask over the slots says which rows a row may see: the text before the tree, its own ancestors, and itself.

Legend: T rows, R rows with logits, S slots, L layers, H hidden size, Q query heads, K key/value heads, D head size,
V vocabulary, O outputs of a linear layer.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import ModelSpec
from forerun.model.executor import ForwardInput
from forerun.model.rope import inverse_frequencies


class ReadableModel:
    """A model with its cache.

    Args:
        weights: all weights in one dtype, by our names (`checkpoints.huggingface.names`).
        num_slots: rows that the cache has room for.
    """

    def __init__(self, spec: ModelSpec, weights: Mapping[str, Tensor], num_slots: int) -> None:
        others = mechanisms_of(spec, num_slots)
        assert not others, f"this page is about Llama-like models, and this one has {', '.join(sorted(others))}"
        assert spec.rope.kind in ("default", "linear", "llama3") and not spec.unrotated_layers, f"rotation {spec.rope}"
        self._spec = spec
        self._weights = weights
        shape = spec.num_layers, num_slots, spec.num_kv_heads, spec.head_dim
        self.keys_LSKD = torch.zeros(shape, dtype=weights["embedding.weight"].dtype)
        self.values_LSKD = torch.zeros_like(self.keys_LSKD)

    def forward(self, inputs: ForwardInput) -> Tensor:
        """Logits [R, V] of the last R = `inputs.num_logit_rows` rows. The keys and values of all rows are stored."""
        x_TH = self._weights["embedding.weight"][inputs.token_ids]
        for layer in range(self._spec.num_layers):
            x_TH = x_TH + self._attention(layer, self._norm(x_TH, f"layers.{layer}.attention_norm"), inputs)
            x_TH = x_TH + self._mlp(layer, self._norm(x_TH, f"layers.{layer}.mlp_norm"))
        x_RH = x_TH[len(x_TH) - inputs.num_logit_rows :]
        return self._linear(self._norm(x_RH, "final_norm"), "embedding" if self._spec.tied_embeddings else "head")

    def keep(self, committed_len: int, rows: Sequence[int]) -> None:
        """Move the accepted rows of the tree behind the committed text; the next pass overwrites the others.

        Keys are stored after their rotation, which depends on the position and not on the slot, so a copy is enough.
        """
        slots = [committed_len + row for row in rows]
        for cache_LSKD in (self.keys_LSKD, self.values_LSKD):
            cache_LSKD[:, committed_len : committed_len + len(rows)] = cache_LSKD[:, slots]

    def _attention(self, layer: int, x_TH: Tensor, inputs: ForwardInput) -> Tensor:
        spec = self._spec
        name = f"layers.{layer}."
        qkv_TO = self._linear(x_TH, name + "qkv")
        q_TO, k_TO, v_TO = torch.split(qkv_TO, [spec.q_size, spec.kv_size, spec.kv_size], -1)
        q_TQD = q_TO.reshape(-1, spec.num_heads, spec.head_dim)
        k_TKD = k_TO.reshape(-1, spec.num_kv_heads, spec.head_dim)
        v_TKD = v_TO.reshape(-1, spec.num_kv_heads, spec.head_dim)
        if spec.qk_norm:
            q_TQD = self._norm(q_TQD, name + "q_norm")
            k_TKD = self._norm(k_TKD, name + "k_norm")
        new_slots = slice(inputs.first_slot, inputs.num_slots)
        self.keys_LSKD[layer, new_slots] = self._rotate(k_TKD, inputs.positions)
        self.values_LSKD[layer, new_slots] = v_TKD
        # Grouped attention: Q / K query heads that follow one another share a key and value head.
        group = spec.num_heads // spec.num_kv_heads
        keys_SQD = self.keys_LSKD[layer, : inputs.num_slots].repeat_interleave(group, dim=1)
        values_SQD = self.values_LSKD[layer, : inputs.num_slots].repeat_interleave(group, dim=1)
        scores_QTS = torch.einsum("tqd,sqd->qts", self._rotate(q_TQD, inputs.positions), keys_SQD)
        scores_QTS = (scores_QTS * spec.head_dim**-0.5).masked_fill(~visible_slots(inputs), -torch.inf)
        mixed_TQD = torch.einsum("qts,sqd->tqd", scores_QTS.softmax(-1), values_SQD)
        return self._linear(mixed_TQD.flatten(1), name + "attention_out")

    def _mlp(self, layer: int, x_TH: Tensor) -> Tensor:
        """silu(gate) * up, and back to the hidden size; silu(x) is x * sigmoid(x)."""
        gate_TO, up_TO = self._linear(x_TH, f"layers.{layer}.gate_up").chunk(2, -1)
        return self._linear(gate_TO * gate_TO.sigmoid() * up_TO, f"layers.{layer}.mlp_out")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """RMS norm over the last dimension: its numbers have a mean square of 1, then each has its own factor."""
        mean_square = x.square().mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self._spec.norm_eps) * self._weights[f"{name}.weight"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._weights[f"{name}.weight"].T
        bias_O = self._weights.get(f"{name}.bias")
        return y if bias_O is None else y + bias_O

    def _rotate(self, x_TND: Tensor, positions: Sequence[int]) -> Tensor:
        """Rotary embedding: dimensions i and i + D / 2 of a head are a point, which turns by position * frequency_i.

        The product of a rotated query and a rotated key depends on the distance of their positions alone.
        """
        frequencies = inverse_frequencies(self._spec.rope, self._spec.head_dim)  # theta^(-2i/D), or scaled
        angles_TND = torch.outer(torch.tensor(positions).float(), frequencies)[:, None]
        cos_TND = angles_TND.cos().to(x_TND.dtype)
        sin_TND = angles_TND.sin().to(x_TND.dtype)
        first, second = x_TND.chunk(2, -1)
        return torch.cat((first * cos_TND - second * sin_TND, second * cos_TND + first * sin_TND), -1)


def visible_slots(inputs: ForwardInput) -> Tensor:
    """[T, S]: each row attends to the prefix, its ancestors and itself; without a tree, to all slots up to its own."""
    num_rows = len(inputs.token_ids)
    if inputs.ancestry is None:
        return torch.ones(num_rows, inputs.num_slots, dtype=torch.bool).tril(inputs.first_slot)
    prefix = torch.ones(num_rows, inputs.prefix_len, dtype=torch.bool)
    return torch.cat((prefix, torch.from_numpy(inputs.ancestry)), 1)
