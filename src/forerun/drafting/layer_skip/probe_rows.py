"""Rows that ride along in another pass: known text run again with sublayers left out, to see what would be guessed.

Legend: T rows of the pass, E riders, S sublayers, W slots that not every row sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from forerun.core.sublayers import SkipSet, all_sublayers
from forerun.model.inputs import ForwardInput

MOST_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Riders:
    """Chains of rows over committed text, one for each set of sublayers to leave out.

    A chain sees the text before its first row as the cache holds it, and its own rows: just what a draft from there
    would see. So its guesses are those that a real draft would make at these places.

    Args:
        token_ids: the text at the places of one chain, the same for all of them.
        start: the place of the first.
        skipped: what each chain leaves out.
    """

    token_ids: Sequence[int]
    start: int
    skipped: Sequence[SkipSet]

    @property
    def num_rows(self) -> int:
        return len(self.token_ids) * len(self.skipped)

    @property
    def places(self) -> list[int]:
        """The place in the text of every row, chain by chain."""
        return list(range(self.start, self.start + len(self.token_ids))) * len(self.skipped)


class RiderLayout:
    """Puts riders into passes of one model.

    What depends on the shape or on a set alone is made once.

    Args:
        num_layers: of the model.
    """

    def __init__(self, num_layers: int) -> None:
        self._numbers = {sublayer: number for number, sublayer in enumerate(all_sublayers(num_layers))}
        self._flags: dict[SkipSet, NDArray[np.bool_]] = {}

    def ride_along(self, host: ForwardInput, riders: Riders) -> ForwardInput:
        """The pass with riders behind its own rows. Their slots follow its own and are forgotten with its tree.

        Args:
            host: rows that see all of the text before them, and logits of all of them.
        """
        num_host, num_riders = len(host.token_ids), riders.num_rows
        assert host.num_logit_rows == num_host and host.prefix_len == host.first_slot >= riders.start, "rows of a tree"
        num_text = host.prefix_len - riders.start
        sees_TW = np.zeros((num_host + num_riders, num_text + num_host + num_riders), np.bool_)
        sees_TW[:num_host, :num_text] = True
        sees_TW[:num_host, num_text : num_text + num_host] = (
            chains(num_host, 1) if host.ancestry is None else host.ancestry
        )
        sees_TW[num_host:, num_text + num_host :] = chains(len(riders.token_ids), len(riders.skipped))
        skips_TS = np.zeros((num_host + num_riders, len(self._numbers)), np.bool_)
        self._mark(skips_TS[num_host:], riders)
        return replace(
            host,
            token_ids=[*host.token_ids, *list(riders.token_ids) * len(riders.skipped)],
            positions=[*host.positions, *riders.places],
            prefix_len=riders.start,
            ancestry=sees_TW,
            num_logit_rows=num_host + num_riders,
            row_skips=skips_TS,
        )

    def ride_alone(self, riders: Riders, first_slot: int) -> ForwardInput:
        """A pass of riders alone, in slots behind the text."""
        num_text = first_slot - riders.start
        sees_EW = np.zeros((riders.num_rows, num_text + riders.num_rows), np.bool_)
        sees_EW[:, num_text:] = chains(len(riders.token_ids), len(riders.skipped))
        skips_ES = np.zeros((riders.num_rows, len(self._numbers)), np.bool_)
        self._mark(skips_ES, riders)
        return ForwardInput(
            token_ids=list(riders.token_ids) * len(riders.skipped),
            positions=riders.places,
            first_slot=first_slot,
            prefix_len=riders.start,
            ancestry=sees_EW,
            num_logit_rows=riders.num_rows,
            row_skips=skips_ES,
        )

    def _mark(self, skips_ES: NDArray[np.bool_], riders: Riders) -> None:
        """Mark what each row leaves out."""
        length = len(riders.token_ids)
        for chain, skipped in enumerate(riders.skipped):
            skips_ES[chain * length : (chain + 1) * length] = self._flags_of(skipped)

    def _flags_of(self, skipped: SkipSet) -> NDArray[np.bool_]:
        flags = self._flags.get(skipped)
        if flags is None:
            if len(self._flags) >= MOST_REMEMBERED:
                self._flags.clear()
            flags = self._flags[skipped] = np.zeros(len(self._numbers), np.bool_)
            flags[[self._numbers[sublayer] for sublayer in skipped]] = True
        return flags


@cache
def chains(length: int, number: int) -> NDArray[np.bool_]:
    """[number * length, number * length]: so many chains side by side, each row seeing those of its own before it."""
    return np.kron(np.eye(number, dtype=np.bool_), np.tri(length, dtype=np.bool_))
