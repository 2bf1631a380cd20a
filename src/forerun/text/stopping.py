"""Finds stop strings in streamed text, at the same place however the text is divided into pieces."""

from collections.abc import Sequence

from forerun.text.output.text_source import num_held


class StopStrings:
    """Passes text through until a stop string is complete; the stop string itself is not passed.

    The stop string that is complete first counts; of those that are complete at the same character, the longest. This
    rule depends only on the text, so the text stops at the same character however many tokens a round accepts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""  # the stop string that was found, which is never empty

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that is certainly before any stop string, and whether one was found.

        Text that may be the start of a stop string is held back. After a stop, no more text is returned.
        """
        if self.found:
            return "", True
        window = self._held + text
        place = self._find(window)
        if place is not None:
            end, start = place
            self._held = ""
            self.found = window[start:end]
            return window[:start], True
        num_certain = len(window) - num_held(window, self._stops)
        self._held = window[num_certain:]
        return window[:num_certain], False

    def flush(self) -> str:
        """The text that was held back, at the end of the stream."""
        held = self._held
        self._held = ""
        return held

    def _find(self, window: str) -> tuple[int, int] | None:
        """Where the stop string that is complete first ends and begins.

        A match cannot begin before the held text: its beginning would have been held too.
        """
        found = [(start + len(stop), start) for stop in self._stops if (start := window.find(stop)) >= 0]
        return min(found) if found else None
