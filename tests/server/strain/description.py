"""schemathesis on the served description: all checks, right data and wrong, in all its phases."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import httpx

from tests.server.strain.process import serving
from tests.server.strain.wire import Outcome

KEY: Final = "the-key-of-schemathesis"
ANSWER_S: Final = 120  # of a request for many texts of full length
PHASES: Final = "examples,coverage,fuzzing,stateful"
CONFIG: Final = f'[auth.openapi.key]\nbearer = "{KEY}"\n'


def program() -> str | None:
    """schemathesis' command; None where it is not installed."""
    return shutil.which("st", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))


def run(num_examples: int, *, seed: int = 0) -> Outcome:
    """So many examples for each operation, against a server with a key."""
    command = program()
    assert command is not None, "schemathesis is not installed: CONTRIBUTING.md has the command"
    outcome = Outcome()
    with tempfile.TemporaryDirectory() as folder, serving("--fixed-widths", FORERUN_API_KEY=KEY) as server:
        here = Path(folder)
        described = httpx.get(f"{server.url}/openapi.json", headers={"authorization": f"Bearer {KEY}"}, trust_env=False)
        (here / "openapi.json").write_text(described.text)
        (here / "schemathesis.toml").write_text(CONFIG)
        shutil.copy(Path(__file__).with_name("schemathesis_hooks.py"), here / "hooks.py")
        finished = subprocess.run(
            [
                command, "run", "openapi.json", "--url", server.url, "--max-examples", str(num_examples), "--checks",
                "all", "--mode", "all", "--phases", PHASES, "--seed", str(seed), "--continue-on-failure", "--no-color",
                "--request-timeout", str(ANSWER_S), "--max-response-time", str(ANSWER_S),
                "--generation-database", "none", "--report", "json", "--report-json-path", "report.json",
            ],
            cwd=here, env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": folder},
            capture_output=True, text=True,
        )  # fmt: skip
        report = json.loads((here / "report.json").read_text())
        outcome.figures |= {
            "operations": report["operations"]["tested"],
            "examples per operation": num_examples,
            "cases": report["test_cases"]["generated"],
            "failures": report["test_cases"]["unique_failures"],
            "errors": len(report["errors"]),
        }
        outcome.require(finished.returncode == 0, re.sub(r"\n\n+", "\n", finished.stdout)[-6000:])
        outcome.require(server.is_alive(), "the server ended")
        outcome.require("Traceback" not in server.said(), server.said()[-3000:])
    return outcome
