"""Distinguishes a hanging process from one that is silent because it gets no CPU time."""

import os
from pathlib import Path
from time import monotonic
from typing import Final

MIN_WATCH_S: Final = 0.3  # shortest interval for an estimate of the CPU share
MAX_WATCH_S: Final = 10.0  # longest interval that reflects the process's present state
STARVED_SHARE: Final = 0.2  # a runnable process that is given less of a core than this is starved


class StarvationWatch:
    """Judges a process by the CPU time that it gets."""

    def __init__(self) -> None:
        self._used_s, self._judged_at = 0.0, monotonic()

    def is_starved(self, pid: int | None) -> bool:
        """True if the process is runnable but gets no CPU time, or was not watched for long enough yet."""
        state, used_s = process_state(pid) if pid else ("", 0.0)
        watched_s = monotonic() - self._judged_at
        if state != "R":
            return False
        if watched_s < MIN_WATCH_S:
            return True
        share = (used_s - self._used_s) / watched_s
        self._used_s, self._judged_at = used_s, monotonic()
        return watched_s > MAX_WATCH_S or share < STARVED_SHARE


def process_state(pid: int) -> tuple[str, float]:
    """The state letter of a process and its CPU seconds; ("", 0.0) if the system does not report them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
