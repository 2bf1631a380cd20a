"""forerun prepare --quantize awq, run as a user runs it: a folder comes of it that every command opens."""

import json
import re
from pathlib import Path

import pytest

from forerun_lab.cli.prepare import calibration_text
from tests.cli.conftest import Run

SUMMARY = re.compile(r"groups of 32 inputs, .* perplexity is (?P<after>[\d.]+), before (?P<before>[\d.]+) \([+-]")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(calibration_text(None)[:10_000])
    return path


def test_a_packed_model_is_written_measured_and_opened(run: Run, tmp_path: Path, text: Path) -> None:
    out = tmp_path / "packed"
    shown = run(
        "prepare", "builtin-draft", "--quantize", "awq", "--out", str(out), "--calib", str(text), "--threads", "1"
    )
    assert shown.exit_code == 0, shown.output
    found = SUMMARY.search(shown.stdout)
    assert found is not None, shown.stdout
    assert 0.95 < float(found["after"]) / float(found["before"]) < 1.05
    assert json.loads((out / "config.json").read_text())["quantization_config"]["version"] == "gemm"
    assert {path.name for path in out.iterdir()} >= {"model.safetensors", "tokenizer.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["packed"], "nothing else is left"
    assert "AWQ int4" in run("inspect", str(out)).stdout
    written = run("generate", str(out), "--prompt", "def f(", "--max-new-tokens", "4", "--drafter", "none")
    assert written.exit_code == 0, written.output
    again = run("prepare", str(out), "--quantize", "awq", "--out", str(tmp_path / "twice"))
    assert again.exit_code != 0
    assert "holds weights in" in again.stderr


def test_what_cannot_be_done_is_said(run: Run, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    there = tmp_path / "there"
    bytes_file = tmp_path / "bytes"
    short.write_text("too short")
    bytes_file.write_bytes(b"\xff\xfe\xff")
    there.mkdir()
    out = ("--out", str(tmp_path / "new"))
    for arguments, words in (
        ((), "--out FOLDER"),
        (("--out", str(there)), "there"),
        ((*out, "--calib", str(short)), "2048 are needed"),
        ((*out, "--calib", str(bytes_file)), "UTF-8"),
        ((*out, "--calib", str(tmp_path / "none")), "cannot be read"),
        ((*out, "--layer-skip"), "say what to prepare"),
        ((*out, "--dtype", "bfloat16"), "in float32 on the CPU"),
    ):
        shown = run("prepare", "builtin", "--quantize", "awq", *arguments)
        assert shown.exit_code != 0, arguments
        assert words in " ".join(shown.stderr.split()), shown.stderr
    assert not (tmp_path / "new").exists()
