"""The input of a forward pass."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.core.sublayers import NOTHING, SkipSet


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenChoice:
    """Choose the token with the largest logit / temperature + noise, see `sampling.sample`.

    Args:
        seed: seed of the noise, 64 bits; None: no noise.
    """

    seed: int | None
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardInput:
    """T rows for one forward pass.

    Args:
        token_ids: T ids.
        positions: T places in the text; independent of the slots.
        first_slot: the rows' keys and values go to slots first_slot .. first_slot + T - 1.
        prefix_len: number of slots, from the first, that every row attends to.
        ancestry: [T, W] bool, which rows attend to which slots from prefix_len to the last new one; None means causal.
        num_logit_rows: number of rows at the end with logits.
        skipped: sublayers left out of this pass (self-speculation).
        row_skips: [T, S] bool, the sublayers, in the order of `all_sublayers`, that this row alone leaves out: they do
            not change its residual stream, but its keys and values are still written. None: every row runs them all.
        choice: how the caller will choose a token after each row with logits, if it uses the logits for nothing else;
            ranks that share a model then return the tokens in `ForwardOutput.best` instead of joining their logits.
        taps: layers, ascending, after which the residual stream is copied into `ForwardOutput.features`.
    """

    token_ids: list[int]
    positions: list[int]
    first_slot: int
    prefix_len: int
    ancestry: NDArray[np.bool_] | None = None
    num_logit_rows: int = 1
    skipped: SkipSet = NOTHING
    row_skips: NDArray[np.bool_] | None = None
    taps: tuple[int, ...] = ()
    choice: TokenChoice | None = None

    def __post_init__(self) -> None:
        num_rows = len(self.token_ids)
        assert num_rows == len(self.positions) > 0, f"{num_rows} ids, {len(self.positions)} positions"
        assert 0 <= self.prefix_len <= self.first_slot, f"prefix {self.prefix_len}, first slot {self.first_slot}"
        assert 0 <= self.num_logit_rows <= num_rows, f"{self.num_logit_rows} logit rows of {num_rows}"
        if self.ancestry is not None:
            shape = num_rows, self.first_slot + num_rows - self.prefix_len
            assert self.ancestry.shape == shape, f"ancestry {self.ancestry.shape} where {shape} is needed"
        if self.row_skips is not None:
            assert len(self.row_skips) == num_rows, f"row skips {self.row_skips.shape} for {num_rows} rows"
        assert list(self.taps) == sorted(set(self.taps)), f"taps {self.taps}"

    @property
    def num_slots(self) -> int:
        """Number of slots filled after this pass."""
        return self.first_slot + len(self.token_ids)
