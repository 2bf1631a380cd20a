"""A limit on an activity's share of the time. Callers pass in times; no clock is read."""


class TimeShare:
    """A budget that grows by a share of all time and shrinks by the time used.

    At most `most_saved_s` are saved up, so that a long pause does not permit a long burst.

    Args:
        share: share of all time, in (0, 1].
        most_saved_s: limit in seconds.
    """

    def __init__(self, share: float, most_saved_s: float) -> None:
        self._share = share
        self._most_saved_s = most_saved_s
        self.saved_s = 0.0  # the rest of the budget

    def pass_by(self, seconds: float, wanted: float = 1.0) -> None:
        """Add the share of elapsed time, times `wanted`."""
        if self.saved_s < self._most_saved_s:
            self.saved_s = min(self.saved_s + self._share * wanted * seconds, self._most_saved_s)

    def hurry(self, seconds: float) -> None:
        """Permit this much at once, beyond the share; 0 withdraws the rest of an earlier permission."""
        self.saved_s = min(self.saved_s, self._most_saved_s) + seconds

    def spend(self, seconds: float) -> None:
        """Subtract the time used."""
        self.saved_s -= seconds

    @property
    def is_eager(self) -> bool:
        """True while the budget exceeds the saving limit, or most of all time may be used."""
        return self.saved_s > self._most_saved_s or self._share >= 0.5

    @property
    def is_open(self) -> bool:
        """True while there is budget left."""
        return self.saved_s > 0.0
