"""Scripts of this folder in processes of their own: Triton's interpreter is chosen when Triton is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]


def run_compiled(script: str, *arguments: object) -> Any:
    """The JSON that a script writes; Triton's interpreter is off in it."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-W", "error", str(FOLDER / script), *map(str, arguments)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)
