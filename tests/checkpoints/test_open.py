"""Names to models, without a network."""

import os
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.gguf.parts import choose_file
from forerun.checkpoints.huggingface.config import MAP_NAME
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
from tests.checkpoints.folders import write_config

GGUF_NAMES = [
    *("README.md", "config.json", "m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf", "m-F16.gguf"),
    *("m-Q4_K_M.gguf", "Q8_0/m.gguf", "mmproj-Q4_K.gguf"),
]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import sys
from forerun.checkpoints.huggingface.config import MAP_NAME
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
for argument in sys.argv[1:]:
    try:
        print(open_source(argument).folder)
    except CheckpointError as error:
        print("refused:", error)
"""


OFFLINE = (
    "org/missing",
    "org/mis--sing",
    "org/model",
    "org/m",
    "org/m:q8_0",
    "org/m:Q6_K",
    "org/other:Q6_K",
    "org/bare",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the hub with a model, GGUF files beside a config, as many repositories have it, and no model."""
    cache = tmp_path_factory.mktemp("cache")
    for name in ("model", "m", "bare"):
        snapshot = snapshot_of(cache, name)
        snapshot.mkdir(parents=True)
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text(COMMIT)
        if name != "bare":
            write_config(snapshot)
    (snapshot_of(cache, "bare") / "README.md").touch()
    (snapshot_of(cache, "m") / "Q8_0").mkdir()
    (snapshot_of(cache, "m") / "Q8_0" / "m.gguf").touch()
    return cache


@pytest.fixture(scope="module")
def offline(cache: Path) -> dict[str, str]:
    """Where what `open_source` gives for each name lies, in a process without a network."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(cache), "HF_HUB_CACHE": str(cache / "hub")}
    command = [sys.executable, "-c", PROGRAM, *OFFLINE]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return dict(zip(OFFLINE, output.splitlines(), strict=True))


def snapshot_of(cache: Path, name: str) -> Path:
    return cache / "hub" / f"models--org--{name}" / "snapshots" / COMMIT


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


def test_a_gguf_file_or_a_folder_with_one_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.touch()
    for name in (tmp_path, path):
        source = open_source(str(name))
        assert isinstance(source, GgufCheckpoint)
        assert (source.name, source.path, source.folder) == (str(name), path, tmp_path)
    path.rename(tmp_path / "blob")
    (tmp_path / "blob").write_bytes(b"GGUF")
    assert isinstance(open_source(str(tmp_path / "blob")), GgufCheckpoint)


@pytest.mark.parametrize(
    ("tag", "chosen"),
    [
        (None, "m-Q4_K_M.gguf"),
        ("q4_k_m", "m-Q4_K_M.gguf"),
        ("F16", "m-F16.gguf"),
        ("bf16", "m-BF16-00001-of-00002.gguf"),
        ("Q8_0", "Q8_0/m.gguf"),
    ],
)
def test_a_type_is_found_in_the_names_of_a_repository(tag: str | None, chosen: str) -> None:
    assert choose_file("org/m", GGUF_NAMES, tag) == chosen


@pytest.mark.parametrize(
    "draft",
    [
        "dflash-draft/m-Q4_K_M.gguf", "draft/m-Q4_K_M.gguf", "M-DRAFT-Q4_K_M.gguf", "M-MTP-Q4_K_M.gguf",
        "mtp-M-Q4_K_M.gguf", "M-assistant-Q4_K_M.gguf", "EAGLE3/M-Q4_K_M.gguf", "mmproj-M-Q4_K_M.gguf",
        "M-draft-Q4_K_M-00001-of-00002.gguf",
    ],
)  # fmt: skip
def test_what_lies_beside_a_model_to_draft_for_it_is_not_the_model(draft: str, tmp_path: Path) -> None:
    for plain in ("m-Q8_0.gguf", "z/m-Q4_K_M.gguf", "z-Q8_0-00001-of-00002.gguf"):
        assert choose_file("org/m", [draft, plain], None) == plain
    assert choose_file("org/m", [draft, "z/m-Q4_K_M.gguf"], "Q4_K_M") == "z/m-Q4_K_M.gguf"
    if "mmproj" not in draft:
        assert choose_file("org/draft", [draft], None) == draft, "it is all there is"
        assert choose_file("org/m", [draft, "m-Q8_0.gguf"], "Q4_K_M") == draft, "only it is of this type"
    for name in (Path(draft).name, "z.gguf"):
        (tmp_path / name).touch()
    if Path(draft).name == draft:
        assert open_source(str(tmp_path)).path == tmp_path / "z.gguf"


def test_a_hub_name_without_its_owner_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r'not a full hub name.*with its owner, of the form "org/model"'):
        open_source("gpt2")


@pytest.mark.parametrize(
    "name", ["/no/such", "./nope.gguf", "../x/y", "~/nope", "nope.gguf", "a/b.GGUF", "a/m.safetensors"]
)
def test_a_path_to_nothing_is_told_as_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"^there is no such file or folder: {re.escape(name)}; check the path"):
        open_source(name)


@pytest.mark.parametrize("name", ["", "gpt2x", "a/b/c", "org/mo del", "http://x/y"])
def test_neither_folder_nor_hub_name_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"builtin-draft|holds no config|name is empty"):
        open_source(name)


def test_a_hub_model_that_cannot_be_fetched_is_refused(offline: dict[str, str]) -> None:
    for name in ("org/missing", "org/mis--sing"):
        output = offline[name]
        assert output.startswith("refused:")
        assert f"{name} could not be fetched" in output
        assert "check the name and the network" in output


def test_a_cached_snapshot_is_found_offline(cache: Path, offline: dict[str, str]) -> None:
    assert offline["org/model"] == str(snapshot_of(cache, "model"))


def test_only_the_named_file_is_fetched_with_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[object] = []

    def fetch(name: str, *, allow_patterns: list[str], tqdm_class: None) -> str:
        fetched.append((name, allow_patterns))
        for wanted in allow_patterns:
            (tmp_path / wanted).touch()
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda api, name: GGUF_NAMES)
    source = open_source("org/m:BF16")
    assert isinstance(source, GgufCheckpoint)
    assert (source.name, source.path) == ("org/m:BF16", tmp_path / "m-BF16-00001-of-00002.gguf")
    assert fetched == [("org/m", ["m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf"])]


def test_a_draft_on_the_hub_comes_with_its_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it every id would stand for itself, and the draft would guess nothing right."""
    write_config(tmp_path)
    fetched: list[str] = []

    def fetch(name: str, *, allow_patterns: list[str], tqdm_class: None) -> str:
        fetched.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert open_source("org/draft").folder == tmp_path
    assert any(fnmatch(MAP_NAME, pattern) for pattern in fetched)
    assert not any(fnmatch("copy.safetensors", pattern) for pattern in fetched)


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
