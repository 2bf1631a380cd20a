"""Random inputs for the ops, and a dense attention that both twins are compared with.

Legend: T rows, Q query heads, K key/value heads, S slots, W tree slots, D head size.
"""

import random

import torch
from torch import Tensor

from forerun.backends.torch.backend import TorchBackend
from forerun.backends.torch.ops import TreeMask
from forerun.speculation.tree import ancestry_matrix


def random_parents(rng: random.Random, num_nodes: int) -> list[int]:
    return [-1, *(rng.choice([node - 1, rng.randrange(node)]) for node in range(1, num_nodes))]


class AttentionCase:
    """T rows of a random tree, or the last T of a text, over random keys and values."""

    def __init__(
        self,
        rng: random.Random,
        *,
        dtype: torch.dtype,
        is_causal: bool,
        num_rows: int,
        prefix_len: int,
        num_kv_heads: int,
        group: int,
        head_dim: int,
    ) -> None:
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        num_earlier = 0 if is_causal else rng.randrange(4)  # tree rows of an earlier pass, as when a draft tree grows
        num_tree = num_rows + num_earlier
        num_slots = prefix_len + num_tree
        self.group = group
        self.q_TQD = self._random((num_rows, num_kv_heads * group, head_dim), generator, dtype)
        # Slots behind the live ones hold NaN, and heads of a slot do not lie side by side: a cache's view of itself.
        storage = self._random((2, num_slots + 3, num_kv_heads, head_dim), generator, dtype)
        storage[:, num_slots:] = float("nan")
        self.keys_SKD = storage[0, :num_slots]
        self.values_SKD = storage[1, :num_slots]
        self.ancestry_TW = None
        if not is_causal:
            matrix = torch.from_numpy(ancestry_matrix(random_parents(rng, num_tree)))
            self.ancestry_TW = matrix[num_earlier:]
        self.prefix_len = prefix_len

    @staticmethod
    def _random(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def attend(self, kernels: TorchBackend) -> Tensor:
        mask = TreeMask(
            num_rows=len(self.q_TQD),
            num_slots=len(self.keys_SKD),
            prefix_len=self.prefix_len,
            ancestry_TW=self.ancestry_TW,
        )
        prepared = kernels.ops.prepare_mask(mask, group=self.group, like=self.q_TQD)
        return kernels.ops.tree_attention(self.q_TQD, self.keys_SKD, self.values_SKD, prepared)

    def visible(self) -> Tensor:
        """Who sees which slot, spelled out."""
        num_rows = len(self.q_TQD)
        num_slots = len(self.keys_SKD)
        seen = torch.zeros(num_rows, num_slots, dtype=torch.bool)
        for row in range(num_rows):
            for slot in range(num_slots):
                if self.ancestry_TW is None:
                    seen[row, slot] = slot <= num_slots - num_rows + row
                else:
                    seen[row, slot] = slot < self.prefix_len or bool(self.ancestry_TW[row, slot - self.prefix_len])
        return seen

    def dense(self) -> Tensor:
        """softmax(q k / sqrt(D)) v in float64, head by head, with a mask over all slots."""
        outputs = []
        for head in range(self.q_TQD.shape[1]):
            q = self.q_TQD[:, head].double()
            k, v = (t[:, head // self.group].double() for t in (self.keys_SKD, self.values_SKD))
            scores = (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~self.visible(), float("-inf"))
            outputs.append(scores.softmax(-1) @ v)
        return torch.stack(outputs, 1).flatten(1)
