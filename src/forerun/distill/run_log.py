"""The log of a run, one JSON object per line; the curves are drawn from it."""

import json
from pathlib import Path
from typing import Any

from forerun.core.errors import ConfigError
from forerun.core.output_file import write_whole


class RunLog:
    """Lines appended to a file; each has the seconds of training after which it was written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **values: Any) -> None:
        """Append a line.

        Raises:
            ConfigError: the line cannot be written, for example because the disk is full.
        """
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        except OSError as error:
            raise ConfigError(
                f"{self._path} cannot be written ({error.strerror}): make room, and the same command goes on"
            ) from error

    def read(self) -> list[dict[str, Any]]:
        """Every complete line."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def forget_after(self, trained_s: float) -> None:
        """Remove the lines that a killed run wrote after its last save, and a partial line at the end."""
        if self._path.exists():
            kept = [line for line in self.read() if line["trained_s"] <= trained_s]
            write_whole(self._path, "".join(json.dumps(line) + "\n" for line in kept))
