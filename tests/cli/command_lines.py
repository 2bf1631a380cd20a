"""A command line run in this process, and what is wrong with what came of it."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

from forerun.cli.failures import EXIT_CODES
from forerun.cli.main import main

CODES: Final = {0, 1, 130} | {code for _, code in EXIT_CODES}
LIMIT_S: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line, what is typed, and variables."""

    words: tuple[str, ...]
    typed: bytes
    variables: dict[str, str]


def fault_of(line: Line, code: int, stdout: str, stderr: str) -> str | None:
    """What is wrong with this outcome; None where it is a right run, or a refusal in one clear line."""
    if "Traceback" in stdout + stderr:
        return "traceback"
    if code not in CODES:
        return f"exit code {code}"
    errors = [text for text in stderr.splitlines() if text.startswith("forerun: error: ")]
    if code == 0:
        return "an error, and exit code 0" if errors else None
    is_table = code == 3 and {"inspect", "check"} & set(line.words) and stdout
    is_help = stdout.startswith("Usage: ")
    if not errors:
        return None if is_table or is_help else f"exit code {code} without a word"
    if len(errors) > 1 or not stderr.endswith(f"{errors[0]}\n"):
        return "more than one line"
    return "the API's words" if " or None" in errors[0] else None


def run_here(line: Line) -> tuple[int, str, str]:
    """The line in this process: exit code, stdout and stderr."""
    streams = [io.TextIOWrapper(io.BytesIO(line.typed if place == 0 else b""), encoding="utf-8") for place in range(3)]
    with (
        mock.patch.multiple(sys, stdin=streams[0], stdout=streams[1], stderr=streams[2], argv=["forerun", *line.words]),
        mock.patch.dict(os.environ, line.variables),
        limited(),
    ):
        try:
            main()
            code: Any = 0
        except SystemExit as error:
            code = error.code
        except BaseException as error:  # noqa: BLE001 - whatever comes out is what is looked for
            code = -1
            text = f"Traceback of {type(error).__name__}: {error}"
            streams[2].write(text)
        for stream in streams[1:]:
            stream.flush()
    found = [stream.buffer.getvalue().decode("utf-8", "replace") for stream in streams[1:]]  # type: ignore[attr-defined]
    return int(code or 0), found[0], found[1]


@contextmanager
def limited() -> Iterator[None]:
    """At most LIMIT_S seconds."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"it ran for {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
