"""A model with its cache behind one forward()."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.cache.tree_cache import TreeCache
from forerun.core.model_spec import ModelSpec
from forerun.kernels.dispatch import Kernels
from forerun.model.eager import EagerExecutor, Observer
from forerun.model.inputs import ForwardInput
from forerun.model.program import build_program

PREFILL_ROWS = 256  # rows of one prefill pass: wide enough for the matrix code, small enough for its buffers


class Runner:
    """Model, cache and the text the cache stands for.

    Invariant: `cached_ids` are the committed tokens of the cache, in order; they enter by `sync` and `commit` alone.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: dict[str, Tensor],
        *,
        kernels: Kernels,
        capacity: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.spec, self.device = spec, device
        self.cache = TreeCache(spec, capacity, dtype=dtype, device=device)
        self.cached_ids: list[int] = []
        with torch.inference_mode():
            self._executor = EagerExecutor(spec, build_program(spec), weights, self.cache, kernels)

    @torch.inference_mode()
    def forward(self, inputs: ForwardInput, observe: Observer | None = None) -> Tensor:
        """Logits [num_logit_rows, V] in the model's dtype; keys and values of all rows are in the cache afterwards."""
        return self._executor.run(inputs, observe)

    def forget(self) -> None:
        """Empty the cache."""
        self.sync(())

    def sync(self, token_ids: Sequence[int]) -> int:
        """Make the cache hold exactly `token_ids`; return how many of them it held already."""
        num_shared = shared_length(self.cached_ids, token_ids)
        del self.cached_ids[num_shared:]  # before the cache: an interrupt between may leave it longer, never shorter
        self.cache.truncate(num_shared)
        for start in range(num_shared, len(token_ids), PREFILL_ROWS):
            rows = list(token_ids[start : start + PREFILL_ROWS])
            self.extend(rows, num_logit_rows=0)
        return num_shared

    def extend(self, token_ids: list[int], *, num_logit_rows: int) -> Tensor:
        """Run `token_ids` after the committed text, commit them all, return the last rows' logits."""
        start = self.cache.committed_len
        inputs = ForwardInput(
            token_ids=token_ids,
            positions=list(range(start, start + len(token_ids))),
            first_slot=self.cache.reserve(len(token_ids)),
            prefix_len=start,
            num_logit_rows=num_logit_rows,
        )
        logits = self.forward(inputs)
        self.commit(list(range(len(token_ids))), token_ids)
        return logits

    @torch.inference_mode()
    def commit(self, rows: list[int], token_ids: Sequence[int]) -> None:
        """Commit tree rows, which hold `token_ids`, and forget the other rows."""
        assert len(rows) == len(token_ids), f"{len(rows)} rows for {len(token_ids)} tokens"
        self.cache.commit(rows)
        self.cached_ids.extend(token_ids)


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common start of two id lists."""
    limit = min(len(left), len(right))
    return next((place for place in range(limit) if left[place] != right[place]), limit)
