"""Tiny random checkpoints with tokenizers, as a user would name them on the command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from forerun.cli.main import app
from tests.engine.tiny_tokenizers import write_byte_level, write_llama
from tests.golden.families import llama, qwen2

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., Result]
RunProcess = Callable[..., subprocess.CompletedProcess[str]]
SIZES = {"vocab_size": 320, "max_position_embeddings": 512}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen2-like chat model."""
    folder = tmp_path_factory.mktemp("target")
    qwen2(**SIZES).save(folder)
    return str(write_byte_level(folder))


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shallower model with the target's tokens."""
    folder = tmp_path_factory.mktemp("draft")
    qwen2(**SIZES, num_hidden_layers=1).save(folder)
    return str(write_byte_level(folder))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama-like model with other tokens and no chat template."""
    folder = tmp_path_factory.mktemp("plain")
    llama(**SIZES).save(folder)
    return str(write_llama(folder))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process."""
    for name in [name for name in os.environ if name.startswith("FORERUN_")]:
        monkeypatch.delenv(name)

    def call(*arguments: str, typed: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=typed)

    return call


def command(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-W", "error", "-m", "forerun", *arguments]


def environment(**changes: str) -> dict[str, str]:
    """This process's, without flags of forerun, with one thread and the source on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"} | changes


@pytest.fixture(scope="session")
def run_process() -> RunProcess:
    """Run a command as a user does."""

    def call(*arguments: str, typed: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), env=environment(**changes), input=typed, capture_output=True, text=True, timeout=120
        )

    return call
