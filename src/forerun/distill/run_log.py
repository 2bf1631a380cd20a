"""What happened in a run, a line of JSON each: the curves are drawn from it, and a killed run leaves it whole."""

import json
from pathlib import Path
from typing import Any


class RunLog:
    """Lines appended to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, **values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Every whole line; the last one may be half of one."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]
