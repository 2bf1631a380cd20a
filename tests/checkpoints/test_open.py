"""Names to models, without a network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
from tests.checkpoints.folders import write_config

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import sys
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
try:
    print(open_source(sys.argv[1], revision=sys.argv[2] if len(sys.argv) > 2 else None).folder)
except CheckpointError as error:
    print("refused:", error)
"""


def opened_offline(cache: Path, *arguments: str) -> str:
    """Where what `open_source` gives lies, in a process that may not use the network."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cache), "HF_HUB_CACHE": str(cache / "hub")}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_folder_with_a_config_is_itself(tmp_path: Path) -> None:
    source = open_source(str(write_config(tmp_path)))
    assert (source.name, source.folder) == (str(tmp_path), tmp_path)


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    write_config(tmp_path / "model")
    assert open_source("~/model").folder == tmp_path / "model"


def test_a_folder_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "model").mkdir(parents=True)
    write_config(tmp_path / "org" / "model")
    assert open_source("org/model").folder == Path("org/model")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no config\.json"):
        open_source(str(tmp_path))


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").touch()
    with pytest.raises(CheckpointError, match=r"x\.bin' is a file"):
        open_source(str(tmp_path / "x.bin"))


def test_gguf_is_named_with_what_to_take_instead(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    for name in (tmp_path, tmp_path / "x.gguf"):
        with pytest.raises(CheckpointError, match=r"x\.gguf.* a GGUF file, which is not read yet: .*safetensors"):
            open_source(str(name))


def test_a_hub_name_without_its_owner_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r'no full hub name.*with its owner, of the form "org/model"'):
        open_source("gpt2")


@pytest.mark.parametrize("name", ["", "gpt2x", "/no/such/folder", "a/b/c", "../x/y", "org/mo del", "http://x/y"])
def test_neither_folder_nor_hub_name_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"builtin-draft|holds no config"):
        open_source(name)


@pytest.mark.parametrize("name", ["org/model", "org/mo--del"])
def test_a_hub_model_that_cannot_be_fetched_is_refused(tmp_path: Path, name: str) -> None:
    output = opened_offline(tmp_path, name, "v1")
    assert output.startswith("refused:")
    assert f"{name} at revision v1 could not be fetched" in output
    assert "check the name and the network" in output


def test_a_cached_snapshot_is_found_offline(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--org--model"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    write_config(snapshot)
    assert opened_offline(tmp_path, "org/model") == str(snapshot)
    assert opened_offline(tmp_path, "org/model", COMMIT) == str(snapshot)


def test_a_snapshot_without_a_config_is_refused(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--model" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").touch()
    assert "holds no config.json" in opened_offline(tmp_path, "org/model", COMMIT)


@pytest.mark.parametrize(("name", "folder"), [("builtin", "target"), ("builtin-draft", "draft")])
def test_builtin_names_lie_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, folder: str
) -> None:
    monkeypatch.setattr("forerun.checkpoints.open.files", lambda package: tmp_path)
    with pytest.raises(CheckpointError, match="install forerun again"):
        open_source(name)
    (tmp_path / "assets" / folder).mkdir(parents=True)
    write_config(tmp_path / "assets" / folder)
    assert open_source(name).folder == tmp_path / "assets" / folder
