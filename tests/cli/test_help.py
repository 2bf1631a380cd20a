"""Help texts are complete and whole at any width, and usage errors are one line that shows what was typed."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from forerun.cli.failures import in_flags
from forerun.cli.main import app
from tests.cli.conftest import Run


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, item in getattr(command, "commands", {}).items():
        yield from commands(item, (*path, name))


COMMANDS = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) or "forerun" for path, _ in COMMANDS])
def test_help_shows_every_flag_and_every_word(
    run: Run, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...], command: Any, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = run(*path, "--help")
    assert shown.exit_code == 0
    words = shown.stdout.split()
    text = " ".join(shown.stdout.split())
    for param in command.params:
        if not getattr(param, "hidden", False):
            assert " ".join((param.help or "").split()) in text
            if param.param_type_name == "option":
                assert {*param.opts, *param.secondary_opts} <= {word.rstrip(",") for word in words}
    assert " ".join((command.help or "").split()) in text
    assert max(map(len, shown.stdout.splitlines())) <= width


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (("generate", "-n", "abc"), "--max-new-tokens 'abc' must be a whole number (see forerun generate --help)"),
        (("generate", "--temp", "warm"), "--temperature 'warm' must be a number (see forerun generate --help)"),
        (("generate", "--kernels", "c"), "--kernels 'c' must be one of auto, torch, triton (see"),
        (("generate", "--seeed", "1"), "there is no flag --seeed; did you mean --seed"),
        (("generate", "a", "b"), "got unexpected extra argument"),
        (("check", "a"), "missing argument"),
        (("bench", "run"), "missing option '--out'"),
        (("bench", "ran"), "no such command 'ran'. Did you mean 'run'"),
        (("list",), "there is no command list: forerun models lists the models"),
        (("rm", "smollm2"), "there is no command rm: forerun models MODEL shows the file or folder"),
    ],
)
def test_a_usage_error_is_one_line_that_shows_the_value(run: Run, typed: tuple[str, ...], message: str) -> None:
    shown = run(*typed)
    assert (shown.exit_code, shown.stdout, shown.stderr.count("\n")) == (2, "", 1)
    assert shown.stderr.startswith(f"forerun: error: {message}")


def test_a_value_from_the_environment_is_blamed_on_its_variable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_JSON", "maybe")
    assert "FORERUN_JSON, which sets --json, 'maybe' must be 1 for yes" in run("inspect", "builtin").stderr


def test_a_variable_that_nothing_reads_is_told_with_the_nearest(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_TEMPRATURE", "1")
    monkeypatch.setenv("FORERUN_CACHE", "x")
    line = "forerun: warning: unknown environment variable FORERUN_TEMPRATURE: did you mean FORERUN_TEMPERATURE?"
    assert run("version").stderr == f"{line}\n"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("FORERUN_QUANTIZATION", "did you mean FORERUN_WEIGHTS?"),
        ("FORERUN_MAX_TOKENS", "did you mean FORERUN_MAX_NEW_TOKENS?"),
        ("FORERUN_CHILDREN", "four continuations of a token are tried"),
    ],
)
def test_a_variable_after_another_name_of_a_flag_or_after_one_that_is_gone_is_told_what_does_its_work(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    monkeypatch.setenv(name, "int8")
    line = f"forerun: warning: unknown environment variable {name}: {advice}"
    assert run("version").stderr.startswith(line)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("max_new_tokens 0 must be >= 1", "--max-new-tokens 0 must be >= 1"),
        ("seed -1 must lie", "--seed -1 must lie"),
        ("shorten it, or raise max_length (of 3)", "shorten it, or raise --max-length (of 3)"),
        ("a seed is what /x/max_length.json holds", "a seed is what /x/max_length.json holds"),
    ],
)
def test_errors_speak_of_flags(message: str, shown: str) -> None:
    flags = {"max_new_tokens": "--max-new-tokens", "seed": "--seed", "max_length": "--max-length"}
    assert re.sub(r"\s+", " ", in_flags(message, flags)) == shown
