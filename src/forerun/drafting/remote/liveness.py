"""Hang detection for a drafter process, by comparing a silence with earlier ones. Times are passed in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessSettings:
    """All in seconds except `gap_factor`; chosen by hand, so that a busy machine is not mistaken for a hung process.

    Args:
        silence_s: a needed drafter that is silent for longer counts as hung; ten times the heartbeat interval.
        gap_factor: after a longer gap that ended, silences up to this multiple of that gap are allowed.
        max_silence_s: the longest silence that `gap_factor` can allow.
        max_unheard_s: if the target has not polled for longer, that time does not count as silence.
    """

    silence_s: float = 2.0
    gap_factor: float = 5.0
    max_silence_s: float = 10.0
    max_unheard_s: float = 1.0


LIVENESS = LivenessSettings()


class Liveness:
    """Tracks how long a drafter has been silent during requests that need it."""

    def __init__(self, settings: LivenessSettings = LIVENESS) -> None:
        self._settings = settings
        self._last_heard = self._last_listened = self._silent_s = self._longest_gap_s = 0.0

    def connect(self, now: float) -> None:
        """Note that another process has connected."""
        self._last_heard = self._last_listened = now
        self._silent_s = 0.0

    def begin(self, now: float) -> None:
        """Note that the drafter is needed from now on; an earlier silence continues."""
        self._last_listened, self._last_heard = now, now - self._silent_s

    def end(self, now: float) -> None:
        """Note that the drafter is no longer needed."""
        self._silent_s = now - self._last_heard

    def listen(self, now: float, *, has_spoken: bool) -> None:
        """Note that the target has polled for messages."""
        if now - self._last_listened > self._settings.max_unheard_s:
            self._last_heard += now - self._last_listened  # time without polling is not the drafter's silence
        self._last_listened = now
        if has_spoken:
            self._longest_gap_s = max(self._longest_gap_s, now - self._last_heard)
            self._last_heard = now

    def is_hung(self, now: float) -> bool:
        """True if a needed drafter has been silent for too long."""
        settings = self._settings
        allowed_s = min(settings.gap_factor * self._longest_gap_s, settings.max_silence_s)
        return now - self._last_heard > max(settings.silence_s, allowed_s)
