"""forerun prepare --target-ranks, run as a user runs it: the folder writes what the model itself would have written."""

import json
from pathlib import Path

import pytest

from forerun.checkpoints.prepared.manifest import MANIFEST_NAME
from tests.checkpoints.gguf.models import write_model
from tests.cli.conftest import Run
from tests.marks import rest_slow

RANKS = ("--target-ranks", "2")
PROMPT = ("--prompt", "def f(", "--max-new-tokens", "12", "--temperature", "1", "--seed", "4", "--threads", "1")


@pytest.mark.parametrize("weights", rest_slow(["int4", "stored"], 1))
def test_the_texts_are_the_models(run: Run, tmp_path: Path, weights: str) -> None:
    out = tmp_path / "prepared"
    shown = run("prepare", "builtin", *RANKS, "--weights", weights, "--out", str(out))
    assert shown.exit_code == 0, shown.output
    assert "for 2 ranks" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["prepared"], "nothing else is left"
    expected = run("generate", "builtin", *RANKS, "--weights", weights, "--drafter", "none", *PROMPT)
    written = run("generate", str(out), *RANKS, "--drafter", "prompt_lookup", *PROMPT)
    assert written.exit_code == 0, written.output
    assert written.stdout == expected.stdout
    assert f"prepared{(weights != 'stored' and ': 9.9 M parameters in int4') or ''}" in written.stderr


@pytest.mark.slow
def test_a_packed_model_is_divided(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    text = tmp_path / "text.txt"
    text.write_text("".join(f"def f{n}(x):\n    return x + {n}\n\n" for n in range(400)))
    shown = run(
        "prepare", "builtin", *RANKS, "--quantize", "awq", "--calib", str(text), "--out", str(out), "--threads", "1"
    )
    assert shown.exit_code == 0, shown.output
    assert "perplexity is" in shown.stdout
    assert "int4" in json.loads((out / MANIFEST_NAME).read_text())["formats"]
    assert {path.name for path in tmp_path.iterdir()} == {"prepared", "text.txt"}
    assert run("generate", str(out), *RANKS, "--drafter", "none", *PROMPT).exit_code == 0


def test_what_does_not_fit_is_refused(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "prepared"
    new = ("--out", str(tmp_path / "new"))
    assert run("prepare", "builtin", *RANKS, "--weights", "int8", "--out", str(out)).exit_code == 0
    gguf = write_model(tmp_path / "x.gguf")
    for arguments, words in (
        (("generate", str(out), "-p", "x"), "was prepared for 2 ranks, but 1 were requested"),
        (("generate", str(out), "-p", "x", "--target-ranks", "3"), "use --target-ranks 2"),
        (("generate", str(out), "-p", "x", *RANKS, "--weights", "int4"), "prepared with int8 weights"),
        (("prepare", "builtin", *RANKS, "--out", str(out)), "exists already"),
        (("prepare", "builtin", *RANKS), "--out FOLDER"),
        (("prepare", "builtin", "--target-ranks", "0", *new), "must lie in [1, 64]"),
        (("prepare", "builtin", *RANKS, "--dtype", "float32", *new), "in its own dtype"),
        (("prepare", "builtin", *RANKS, "--weights", "int8", "--quantize", "awq", *new), "leave --weights out"),
        (("prepare", str(gguf), *RANKS, *new), "GGUF file needs no preparation"),
        (("prepare", str(out), *RANKS, *new), "not a folder of safetensors"),
    ):
        shown = run(*arguments)
        assert shown.exit_code != 0, arguments
        assert words in " ".join(shown.stderr.split()), shown.stderr
    assert not (tmp_path / "new").exists()
