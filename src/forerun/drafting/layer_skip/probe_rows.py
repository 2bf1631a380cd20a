"""Probe rows in a pass: they run known text again with sublayers skipped, to score the predictions.

Legend: T rows of the pass, E probe rows, S sublayers, W slots that not every row attends to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forerun.core.sublayers import SkipSet, all_sublayers
from forerun.model.executor import ForwardInput

MOST_REMEMBERED: Final = 256  # sets whose gates are cached
NO_ROWS: Final = np.zeros((0, 0), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRows:
    """Chains of rows over committed text, one for each skip set.

    A chain attends to the cached text before its first row and to its own rows, like a draft from there. So its
    predictions are those of a real draft at these positions.

    Args:
        token_ids: the tokens of one chain, the same for all chains.
        start: position of the first token.
        skipped: the sublayers that each chain skips.
    """

    token_ids: Sequence[int]
    start: int
    skipped: Sequence[SkipSet]

    @property
    def num_rows(self) -> int:
        return len(self.token_ids) * len(self.skipped)

    @property
    def places(self) -> list[int]:
        """The text position of every row, chain by chain."""
        return list(range(self.start, self.start + len(self.token_ids))) * len(self.skipped)


class ProbeLayout:
    """Adds probe rows to passes of one model.

    Values that depend only on the shape or on a set are cached.

    Args:
        num_layers: layers of the model.
    """

    def __init__(self, num_layers: int) -> None:
        self._numbers = {sublayer: number for number, sublayer in enumerate(all_sublayers(num_layers))}
        self._gates_of = lru_cache(MOST_REMEMBERED)(self._make_gates)

    def add_to(self, inputs: ForwardInput, probes: ProbeRows) -> ForwardInput:
        """The pass with probe rows added at the end. Their slots follow those of the tree and are dropped with it.

        Args:
            inputs: rows that attend to all of the text before them, with logits for every row.
        """
        num_own = len(inputs.token_ids)
        assert inputs.num_logit_rows == num_own and inputs.prefix_len == inputs.first_slot, "rows of a tree"
        sees = chains(num_own, 1) if inputs.ancestry is None else inputs.ancestry
        return self._pass(inputs.token_ids, inputs.positions, sees, inputs.first_slot, probes)

    def alone(self, probes: ProbeRows, first_slot: int) -> ForwardInput:
        """A pass of only probe rows, in slots after the text."""
        inputs = self._pass([], [], NO_ROWS, first_slot, probes)
        if len(probes.skipped) > 1:
            return inputs
        return replace(inputs, row_skips=None, skipped=probes.skipped[0])  # runs no skipped sublayer at all

    def _pass(
        self, token_ids: list[int], positions: list[int], sees: NDArray[np.bool_], first_slot: int, probes: ProbeRows
    ) -> ForwardInput:
        """The rows of a tree with their ancestry, followed by probe rows."""
        num_own = len(token_ids)
        num_rows = len(token_ids) + probes.num_rows
        length = len(probes.token_ids)
        num_text = first_slot - probes.start
        assert num_text >= 0, "probe rows run over text"
        sees_TW = np.zeros((num_rows, num_text + num_rows), np.bool_)
        sees_TW[:num_own, :num_text] = True
        sees_TW[:num_own, num_text : num_text + num_own] = sees
        sees_TW[num_own:, num_text + num_own :] = chains(length, len(probes.skipped))
        skips_TS = np.zeros((num_rows, len(self._numbers)), np.bool_)
        for number, skipped in enumerate(probes.skipped):
            skips_TS[num_own + number * length : num_own + (number + 1) * length] = self._gates_of(skipped)
        return ForwardInput(
            token_ids=[*token_ids, *list(probes.token_ids) * len(probes.skipped)],
            positions=[*positions, *probes.places],
            first_slot=first_slot,
            prefix_len=probes.start,
            ancestry=sees_TW,
            num_logit_rows=num_rows,
            row_skips=skips_TS,
        )

    def _make_gates(self, skipped: SkipSet) -> NDArray[np.bool_]:
        gates = np.zeros(len(self._numbers), np.bool_)
        gates[[self._numbers[sublayer] for sublayer in skipped]] = True
        return gates


@cache
def chains(length: int, number: int) -> NDArray[np.bool_]:
    """[number * length, number * length]: the block-diagonal causal mask of `number` chains."""
    return np.kron(np.eye(number, dtype=np.bool_), np.tri(length, dtype=np.bool_))
