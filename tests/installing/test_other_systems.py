"""Start, chat and server as on macOS and Windows: their tests run again in processes that see such a system.

What they see is in tests/other_systems/sitecustomize.py. A test that needs what a system lacks is skipped there, as it
would be on a real one.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
ONLY_THERE: Final = {
    "macos": (
        *(f"tests/cli/test_{name}.py" for name in ("chat_terminal", "models", "worker")),
        *("tests/text", "tests/wires"),
    ),
    "windows": (),
}
EVERYWHERE: Final = (
    *(f"tests/cli/test_{name}.py" for name in ("chat", "chat_commands", "demo", "generate", "main")),
    *(f"tests/cli/test_{name}.py" for name in ("options", "streams", "transcript")),
    *(f"tests/server/test_{name}.py" for name in ("answers", "grammars", "guard", "life", "several_models", "start")),
    "tests/server/test_templates.py",
    *(f"tests/core/test_{name}.py" for name in ("affinity", "interrupts", "threads")),
    "tests/text/test_chat_template.py",
)
IMPORT_ALL: Final = """
import importlib, pkgutil, sys, forerun, forerun_lab
LEFT_OUT = (
    "forerun.backends.gpu.", "forerun.server.replicas", "forerun.cli.ray_app", "forerun.backends.cpu.lib",
    "forerun_lab.checks", "forerun_lab.training",
)
for package in (forerun, forerun_lab):
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.startswith(LEFT_OUT):
            importlib.import_module(found.name)
print(len([name for name in sys.modules if name.startswith("forerun")]))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="other systems are shown on Linux"),
    pytest.mark.parametrize("system", sorted(ONLY_THERE)),
]


def seen_as(system: str, *command: str) -> str:
    """What Python writes on such a system."""
    places = os.pathsep.join([str(ROOT / "tests/other_systems"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"SYSTEM_OF_FORERUNS_TESTS": system, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


def test_every_module_can_be_imported(system: str) -> None:
    assert int(seen_as(system, "-c", IMPORT_ALL)) > 400


def test_start_chat_and_server_need_nothing_that_only_linux_has(system: str) -> None:
    files = (*EVERYWHERE, *ONLY_THERE[system])
    assert " passed" in seen_as(system, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
