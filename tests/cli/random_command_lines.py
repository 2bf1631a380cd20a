"""Random command lines with right and wrong flags, input and variables, and what each of them came to."""

import io
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import typer.main

from forerun.cli.failures import EXIT_CODES
from forerun.cli.main import app, main

CODES: Final = {0, 1, 130} | {code for _, code in EXIT_CODES}
LIMIT_S: Final = 60
# What would run for long, or for ever, where nothing is wrong with it: these only ever get a wrong flag or value.
LONG: Final = ("serve", "worker", "plan", "prepare", "bench run", "bench trace")
NUMBERS: Final = (
    "1",
    "2",
    "3",
    "0",
    "-1",
    "-7",
    "1.5",
    "abc",
    "",
    " ",
    "9" * 40,
    "1e400",
    "nan",
    "0x1",
    "٣",
    "--",
    "2**63",
)
TEXTS: Final = (
    "x",
    "",
    " ",
    "caf\udce9",
    "\ud800",
    "a=b",
    "40=1",
    "1=inf",
    "{",
    "[]",
    "日本",
    "\x1b[2J",
    "-",
    "self",
    "0,1",
    "a:b",
)
DEVICES: Final = ("cpu", "cuda:0", "gpu", "mps", "meta", "", "paced:target=1ms", "paced:", "paced:target=1ms;draft=x")
INPUTS: Final = (b"", b"Once upon", b"caf\xe9 \xff", b"\x00", b"\n", b"/exit\n", b"Hi\n/stats\n!x\n", "日本".encode())
VARIABLES: Final = (
    "FORERUN_TYPO",
    "FORERUN_JSON",
    "FORERUN_THREADS",
    "FORERUN_TEMPERATURE",
    "FORERUN_PROMPT",
    "NO_COLOR",
)
SAFE: Final = {"threads": ("1", "2", "0", "-1", "x", "", "1.5"), "budget_s": ("x",), "control": ("x",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A command line, what is typed, and variables."""

    words: tuple[str, ...]
    typed: bytes
    variables: dict[str, str]


class Lines:
    """Makes command lines over all commands of the program."""

    def __init__(self, seed: int, folder: Path, models: tuple[str, ...]) -> None:
        self._rng, self._folder = random.Random(seed), folder
        (folder / "text").write_text("Once upon a time")
        (folder / "latin").write_bytes(b"caf\xe9")
        (folder / "empty").write_text("")
        files = [str(folder / name) for name in ("text", "latin", "empty", "absent", "new/file", "run.svg", "x.json")]
        self._files = (*files, str(folder), "/proc/1/x", "n" * 300)
        self._models = (*models, *models, *models, "no/such/model", "nowhere", "", str(folder), files[0], "a//b", "..")
        self._commands = list(_commands(typer.main.get_command(app)))

    def make(self) -> Line:
        path, command = self._rng.choice(self._commands)
        if command is None or self._rng.random() < 0.03:
            words = (*path, self._rng.choice(("--help", "--nonsense", "-x", "--=")))
        else:
            words = (*path, *self._arguments(path, command))
        variables = {name: self._rng.choice(("1", "x", "0.5")) for name in VARIABLES if self._rng.random() < 0.03}
        return Line(words=words, typed=self._rng.choice(INPUTS), variables=variables)

    def _arguments(self, path: tuple[str, ...], command: Any) -> Iterator[str]:
        rng = self._rng
        is_long = " ".join(path) in LONG
        params = [param for param in command.params if not getattr(param, "hidden", False)]
        if path[0] in ("generate", "chat", "run"):
            yield from ("-n", "3", "--threads", "1")
        for param in params:
            if param.param_type_name == "argument" and rng.random() < 0.95:
                yield self._value(param)
        flags = [param for param in params if param.param_type_name == "option"]
        for param in rng.sample(flags, min(len(flags), rng.choice((0, 1, 1, 2, 3, 5)))):
            yield rng.choice((*param.opts, *param.secondary_opts))
            if not param.is_flag and rng.random() < 0.97:
                yield self._value(param)
        if is_long or rng.random() < 0.1:
            yield rng.choice(("--nonsense", "--dtype=int3", "--threads=-x", "--max-new-tokenz=1", "--draft-min=2"))

    def _value(self, param: Any) -> str:
        name, descriptor = param.name, param.type_descriptor
        if name in SAFE:
            return self._rng.choice(SAFE[name])
        if name in ("model", "target", "draft", "named_model"):
            return self._rng.choice(self._models)
        if name in ("device", "draft_device", "paced"):
            return self._rng.choice(DEVICES)
        if descriptor.choices:
            return self._rng.choice(
                (*(choice for choice in descriptor.choices if choice != "parallel"), "x", "", "bf16")
            )
        if param.metavar == "FILE" or name in ("profile", "skip_sets", "key_file", "out", "before", "after"):
            return self._rng.choice(self._files)
        return self._rng.choice(NUMBERS if param.metavar in ("N", "X") else TEXTS)


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its path; a group alone has None."""
    items = getattr(command, "commands", None)
    yield path, command if items is None else None
    for name, item in (items or {}).items():
        yield from _commands(item, (*path, name))


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
            code, text = -1, f"Traceback of {type(error).__name__}: {error}"
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
