"""A share of the time that something may take, kept to as the time goes by. No clock: times are told."""


class TimeShare:
    """An account into which a share of all time is paid, and from which what was used is taken.

    What is not used is saved up to `most_saved_s`, so that a long silence allows no long burst.

    Args:
        share: of all time, in (0, 1].
        most_saved_s: seconds.
    """

    def __init__(self, share: float, most_saved_s: float) -> None:
        self._share, self._most_saved_s = share, most_saved_s
        self._saved_s = 0.0

    def pass_by(self, seconds: float, wanted: float = 1.0) -> None:
        """Time went by; `wanted` is the part of the share that is made use of."""
        if self._saved_s < self._most_saved_s:
            self._saved_s = min(self._saved_s + self._share * wanted * seconds, self._most_saved_s)

    def hurry(self, seconds: float) -> None:
        """So much may be used at once, beyond the share; 0 takes back what was left of that."""
        self._saved_s = min(self._saved_s, self._most_saved_s) + seconds

    def spend(self, seconds: float) -> None:
        """So much was used."""
        self._saved_s -= seconds

    @property
    def is_eager(self) -> bool:
        """True while there is more than can be saved up, or most of all time is to be used."""
        return self._saved_s > self._most_saved_s or self._share >= 0.5

    @property
    def is_open(self) -> bool:
        """True while there is anything left."""
        return self._saved_s > 0.0
