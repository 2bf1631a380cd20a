"""The tests that need a GPU, in a process of their own."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from forerun_lab.checks.gpu.cases import ROOT, Case, Row, Setting

WORKERS = 14
TAIL_LINES = 60
ENDED = re.compile(r" (PASSED|FAILED|ERROR|SKIPPED) ")  # of a test, one line each
COUNTS = re.compile(r"(\d+) (passed|failed|error|errors|skipped|deselected|warnings?)\b")


def cases(setting: Setting) -> Iterator[Case]:
    yield Case(name="pytest -m gpu", run=partial(run_tests, setting))


def run_tests(setting: Setting) -> Iterator[Row]:
    """One row of counts; the tail of the failures with it. In a rehearsal tests are collected, one row a file."""
    command = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", "--tb=short", "-rfE"]
    command += ["--continue-on-collection-errors", "-p", "no:benchmark"]  # which warns beside xdist
    if setting.is_rehearsal:
        command += ["--collect-only", "tests"]
    elif find_spec("xdist") is not None:
        command += ["-n", str(WORKERS), "--dist", "worksteal", "tests"]
    else:
        command += ["tests"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=max(10.0, setting.left_s)
        )
        output = done.stdout + done.stderr
        status = done.returncode
    except subprocess.TimeoutExpired as late:
        output = str((late.stdout or b"").decode(errors="replace")) + "\nended: no time left"
        status = -1
    lines = output.splitlines()
    counts = {kind.rstrip("s"): int(number) for number, kind in COUNTS.findall("\n".join(lines[-3:]))}
    if status == -1:  # no summary was written
        words = Counter(word.lower() for word in ENDED.findall(output))
        counts = dict(words)
        lines = [line for line in lines if " FAILED " in line or " ERROR " in line]
    row: Row = {"status": status, **{kind: counts.get(kind, 0) for kind in ("passed", "failed", "error", "skipped")}}
    if status not in (0, 5):  # pytest's word for no tests is 5
        row["tail"] = "\n".join(lines[-TAIL_LINES:])
    yield row
    if setting.is_rehearsal:
        files = Counter(line.split("::")[0] for line in lines if "::" in line)
        yield from ({"file": file, "tests": count} for file, count in sorted(files.items()))
