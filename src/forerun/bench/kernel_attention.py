"""The uses of attention and of its mask: a tree of rows over a filled cache.

Legend: T rows, N heads, S slots, K key/value heads, D head size, W tree slots.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from forerun.backends.choose import Kernels
from forerun.backends.torch.mask import TreeMask
from forerun.bench.kernel_subject import Bound, Cost, Setting, Subject
from forerun.speculation.ancestry import ancestry_matrix


def prepare_mask_subjects(setting: Setting) -> list[Subject]:
    """Who sees whom, prepared once per pass. Twins prepare different things: attention through them is compared."""

    def bind(kernels: Kernels, num_copies: int) -> Callable[[int], Bound]:
        def at(num_rows: int) -> Bound:
            attention = Attention.of(setting, num_rows, num_copies=1)
            return Bound(
                calls=(lambda: attention.prepare(kernels),) * num_copies,
                comparable=lambda mask: attention.attend(kernels, mask, 0),
            )

        return at

    return [
        Subject(
            op="prepare_mask",
            part="tree",
            bind=bind,
            cost=lambda num_rows: Cost(moved_bytes=num_rows**2 if num_rows > 1 else 0),  # a byte for who sees whom
        )
    ]


def tree_attention_subjects(setting: Setting) -> list[Subject]:
    """Attention of a tree's rows to the context and to their ancestors; of one row, as in plain decoding."""
    spec = setting.spec

    def bind(kernels: Kernels, num_copies: int) -> Callable[[int], Bound]:
        def at(num_rows: int) -> Bound:
            attention = Attention.of(setting, num_rows, num_copies=num_copies)
            mask = attention.prepare(kernels)
            return Bound(calls=tuple(partial(attention.attend, kernels, mask, copy) for copy in range(num_copies)))

        return at

    def cost(num_rows: int) -> Cost:
        num_slots = setting.context + num_rows
        return Cost(
            moved_bytes=setting.num_bytes(2 * num_slots * spec.kv_size + 2 * num_rows * spec.q_size),
            num_operations=4 * num_rows * num_slots * spec.q_size,
        )

    return [
        Subject(
            op="tree_attention",
            part=f"{setting.context} tokens",
            bind=bind,
            cost=cost,
            copy_bytes=setting.num_bytes(2 * setting.context * spec.kv_size),
            num_in_model=spec.num_layers,
        )
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A binary tree of queries over copies of a filled cache."""

    mask: TreeMask
    group: int
    q_TND: Tensor
    caches: tuple[Tensor, ...]  # each [2, S, K, D]

    @classmethod
    def of(cls, setting: Setting, num_rows: int, *, num_copies: int) -> "Attention":
        spec, num_slots = setting.spec, setting.context + num_rows
        cache = setting.random(2, num_slots, spec.num_kv_heads, spec.head_dim, seed=9)
        turned_TND = setting.random(num_rows, spec.num_heads + spec.num_kv_heads, spec.head_dim, seed=10)
        ancestry = torch.from_numpy(ancestry_matrix([(node - 1) // 2 for node in range(num_rows)]))
        return cls(
            mask=TreeMask(
                num_rows=num_rows,
                num_slots=num_slots,
                prefix_len=setting.context,
                ancestry_TW=ancestry.to(setting.device) if num_rows > 1 else None,
            ),
            group=spec.num_heads // spec.num_kv_heads,
            q_TND=turned_TND[:, : spec.num_heads],
            caches=tuple(cache.clone() for _ in range(num_copies)),
        )

    def prepare(self, kernels: Kernels) -> Any:
        return kernels.prepare_mask(self.mask, group=self.group, like=self.caches[0])

    def attend(self, kernels: Kernels, mask: Any, copy: int) -> Tensor:
        keys_SKD, values_SKD = self.caches[copy]
        return kernels.tree_attention(self.q_TND, keys_SKD, values_SKD, mask)
