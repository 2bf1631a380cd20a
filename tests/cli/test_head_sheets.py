"""What `inspect` and `check` say of draft heads."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forerun.cli.main import app
from forerun.core.drafter_config import BUILTIN_HEADS
from tests.drafting.heads.published import builtin_head


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_inspect_says_what_a_head_is() -> None:
    code, text = run("inspect", builtin_head("eagle3"))
    assert code == 0
    assert "EAGLE-3" in text
    assert "3 features a token, after the target's layers [1, 4, 8]" in text
    code, text = run("inspect", builtin_head("dflash2"), "--json")
    assert code == 0
    assert json.loads(text)["head"] == "DFlash 2"


def test_check_compares_a_head_with_its_target() -> None:
    head = builtin_head("eagle3")
    code, text = run("check", "builtin", head)
    assert code == 0
    assert text.startswith("fits            yes")
    code, text = run("check", "builtin-draft", head, "--json")
    assert code == 3
    assert "features of size 256" in json.loads(text)["why"]


@pytest.mark.parametrize(
    "line",
    [
        "generate --model HEAD --prompt hi",
        "run HEAD hi",
        "serve HEAD --port 0",
        "demo HEAD",
        "distill HEAD --out never-made",
        "worker HEAD --listen 127.0.0.1:0",
        "prepare HEAD --layer-skip",
        "prepare HEAD --target-ranks 2 --out never-made",
        "bench run --target HEAD --out never-made",
        "bench kernels HEAD",
        "check HEAD builtin",
        "check HEAD builtin-dflash",
    ],
)
@pytest.mark.parametrize("head", BUILTIN_HEADS.values())
def test_a_head_is_no_target(line: str, head: str) -> None:
    code, text = run(*line.replace("HEAD", head).split())
    assert f"error: {head} is a draft head, not a model: give it to --draft, with its target as the model" in text
    assert code == 3


def test_a_head_can_be_fetched() -> None:
    assert run("pull", "builtin-eagle3")[0] == 0


def test_a_damaged_head_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"draft_vocab_size": 3}')
    code, text = run("inspect", str(tmp_path))
    assert code == 3
    assert "holds neither model.safetensors" in text
