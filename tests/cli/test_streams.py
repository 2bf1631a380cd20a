"""Bytes that are no text, and streams that are closed or full."""

import json
import subprocess
from pathlib import Path

import pytest

from forerun.cli import progress as progress_module
from forerun.cli.progress import progress
from tests.cli.conftest import Run, command, environment

SHORT = ("-n", "4", "--ignore-eos", "--drafter", "none")
FULL = Path("/dev/full")


def run_bytes(*arguments: str | bytes, typed: bytes = b"", **changes: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*command(), *arguments], env=environment(**changes), input=typed, capture_output=True)


def test_bytes_that_are_no_text_are_replaced_with_one_word_about_it(target: str) -> None:
    finished = run_bytes("chat", target, *SHORT, typed=b"caf\xe9 \xff\nHi\n")
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr.count(b"the input is not valid UTF-8: bytes such as 0xe9") == 1
    assert b"Traceback" not in finished.stderr
    assert len(finished.stdout.splitlines()) >= 2


@pytest.mark.slow
def test_a_piped_prompt_and_one_of_the_command_line_are_the_same_text(run: Run, target: str) -> None:
    texts = {
        json.loads(finished.stdout)["text"]
        for finished in (
            run_bytes("generate", target, *SHORT, "--json", "-p", b"caf\xe9 x"),
            run_bytes("generate", target, *SHORT, "--json", typed=b"caf\xe9 x", LC_ALL="C", PYTHONUTF8="0"),
        )
    }
    assert texts == {json.loads(run("generate", target, *SHORT, "--json", "-p", "caf\ufffd x").stdout)["text"]}


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
def test_a_full_stdout_is_one_line() -> None:
    with FULL.open("w") as full:
        models = command("models", "--json")
        finished = subprocess.run(models, env=environment(), stdout=full, stderr=subprocess.PIPE)
    assert finished.returncode == 1
    assert finished.stderr == b"forerun: error: the output cannot be written: No space left on device\n"


def test_long_work_says_every_now_and_then_how_far_it_is_if_no_bar_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_module, "BETWEEN_LINES_S", 0.001)
    with progress("packing") as show:
        show(3, 30)
        lines = ""
        while "packing for 0 s, 3 of 30 done\n" not in lines:
            lines += capsys.readouterr().err
