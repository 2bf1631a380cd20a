"""Wheels of scripts/wheel: what their names promise, what is in them, and that one runs where no compiler is."""

import json
import os
import platform
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TIERS: Final = {
    "x86_64-linux": ("portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"),
    "aarch64-linux": ("portable", "neon"),
}
LIBRARY: Final = "forerun/backends/cpu/libforerun_native.so"
TORCH_GLIBC: Final = 28  # of 2.28: torch's wheels need no newer one
MAX_LIBRARY_BYTES, MAX_WHEEL_BYTES = 8 << 20, 44 << 20  # not stripped the library takes 48 MB

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),  # zig compiles each instruction set for a minute
    pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="zig builds here on Linux"),
]


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module", params=sorted(TIERS))
def target(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def wheel(target: str) -> Path:
    run("scripts/wheel", target)
    return max(ROOT.glob(f"dist/forerun-*{target.removesuffix('-linux')}.whl"), key=lambda path: path.stat().st_mtime)


def test_its_name_says_where_it_runs(wheel: Path, target: str) -> None:
    machine = target.removesuffix("-linux")
    found = re.fullmatch(rf"forerun-[\d.]+-py3-none-(manylinux_2_(\d+)_{machine})\.whl", wheel.name)
    assert found is not None, wheel.name
    assert int(found[2]) <= TORCH_GLIBC
    said = run(ROOT / "build/wheel/tools/bin/auditwheel", "show", wheel)
    assert f'"{found[1]}"' in said


def test_it_holds_the_package_and_no_source_of_the_library(wheel: Path) -> None:
    package = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/forerun").rglob("*") if path.is_file()
    }
    expected = {name for name in package if not re.search(r"/cpp/|CMakeLists|__pycache__|libforerun_native", name)} | {
        LIBRARY
    }
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if re.match("forerun/.*[^/]$", name)}
    assert held == expected


def test_its_library_is_small_and_has_every_instruction_set(wheel: Path, target: str) -> None:
    with ZipFile(wheel) as archive:
        library = archive.read(LIBRARY)
    assert [tier for tier in TIERS[target] if b"\0%s\0" % tier.encode() not in library] == []
    assert len(library) < MAX_LIBRARY_BYTES
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


@pytest.mark.parametrize("target", ["x86_64-linux"], indirect=True)
def test_it_writes_a_token_where_no_compiler_is(wheel: Path, tmp_path: Path) -> None:
    """torch and other packages are those of these tests: fetching them anew would take 0.8 GB."""
    venv.create(tmp_path / "env", with_pip=True)
    places = next((tmp_path / "env/lib").glob("python3*/site-packages"))
    (places / "of_the_tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    (tmp_path / "empty").mkdir()
    alone = {"PATH": str(tmp_path / "empty"), "PYTHONPATH": "", "XDG_CACHE_HOME": str(tmp_path)}
    run(tmp_path / "env/bin/python", "-m", "pip", "install", "--no-deps", "--no-index", wheel, **alone)
    command = (tmp_path / "env/bin/forerun", "generate", "builtin", "-p", "def", "-n", "1", "--json")
    answer = json.loads(run(*command, **alone))
    assert answer["stats"]["num_new_tokens"] == 1
    assert answer["engine"]["kernels"] == "native"
    where = run(tmp_path / "env/bin/python", "-c", "import forerun; print(forerun.__file__)", **alone)
    assert Path(where.strip()).is_relative_to(tmp_path)
