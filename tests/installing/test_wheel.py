"""Wheels of scripts/wheel: what their names promise, what is in them, and that one runs where no compiler is.

The kernels for Windows run in wine, if Debian's package wine64 is installed; nothing here runs those for macOS.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import pytest

from tests.backends.cpu.test_tiers import bits_by_tier, tiers_and_bits

ROOT: Final = Path(__file__).resolve().parents[2]
TIERS: Final = {
    "x86_64": ("portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx"),
    "aarch64": ("portable", "neon"),
}
LINUX: Final = ("x86_64-linux", "aarch64-linux")
PLATFORMS: Final = {  # what the names of wheels say, as patterns
    "x86_64-linux": r"manylinux_2_(\d+)_x86_64",
    "aarch64-linux": r"manylinux_2_(\d+)_aarch64",
    "x86_64-windows": "win_amd64",
    "aarch64-macos": "macosx_11_0_arm64",
    "x86_64-macos": "macosx_11_0_x86_64",
}
ENDINGS: Final = {"linux": "so", "windows": "dll", "macos": "dylib"}
BEGINNINGS: Final = {"linux": b"\x7fELF", "windows": b"MZ", "macos": b"\xcf\xfa\xed\xfe"}  # of a library's bytes
TORCH_GLIBC: Final = 28  # of 2.28: torch's wheels need no newer one
MAX_LIBRARY_BYTES = 8 << 20  # not stripped the library takes 48 MB
MAX_WHEEL_BYTES = 44 << 20
DEBIANS: Final = "/usr/lib/wine/wine64"  # not on the PATH
CHECKS: Final = ("check_linear", "check_rows", "tier_bits")

WINE: Final = shutil.which("wine64") or (DEBIANS if Path(DEBIANS).exists() else None)

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


@pytest.fixture(scope="module", params=sorted(PLATFORMS))
def target(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


@pytest.fixture(scope="module")
def wheel(target: str) -> Path:
    run("scripts/wheel", target)
    named = [path for path in ROOT.glob("dist/forerun-*.whl") if re.search(PLATFORMS[target], path.name)]
    return max(named, key=lambda path: path.stat().st_mtime)


@pytest.fixture(scope="module")
def library(wheel: Path, target: str) -> tuple[str, bytes]:
    """The name of its library in the wheel, and its bytes."""
    name = f"forerun/backends/cpu/libforerun_native.{ENDINGS[target.partition('-')[2]]}"
    with ZipFile(wheel) as archive:
        return name, archive.read(name)


def test_its_name_says_where_it_runs(wheel: Path, target: str, library: tuple[str, bytes]) -> None:
    found = re.fullmatch(rf"forerun-[\d.]+-py3-none-({PLATFORMS[target]})\.whl", wheel.name)
    assert found is not None, wheel.name
    assert library[1].startswith(BEGINNINGS[target.partition("-")[2]])
    if target not in LINUX:
        return
    assert int(found[2]) <= TORCH_GLIBC
    said = run(ROOT / "build/wheel/tools/bin/auditwheel", "show", wheel)
    assert f'"{found[1]}"' in said


def test_it_holds_both_packages_and_no_source_of_the_library(wheel: Path, library: tuple[str, bytes]) -> None:
    packages = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    left_out = re.compile(r"/cpp/|CMakeLists|__pycache__|libforerun_native|forerun_lab/(checks|training)/")
    expected = {name for name in packages if not left_out.search(name)} | {library[0]}
    with ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if re.match("forerun(_lab)?/.*[^/]$", name)}
    assert held == expected


def test_its_library_is_small_and_has_every_instruction_set(
    wheel: Path, target: str, library: tuple[str, bytes]
) -> None:
    tiers = TIERS[target.partition("-")[0]]
    assert [tier for tier in tiers if b"\0%s\0" % tier.encode() not in library[1]] == []
    assert len(library[1]) < MAX_LIBRARY_BYTES
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


@pytest.mark.parametrize("target", ["x86_64-windows"], indirect=True)
@pytest.mark.skipif(WINE is None, reason="needs wine64")
def test_kernels_for_windows_are_right_in_wine_and_have_the_bits_of_linux(
    library: tuple[str, bytes], tmp_path: Path
) -> None:
    """The programs compare every instruction set of this machine with double precision and with each other."""
    place = tmp_path / Path(library[0]).name
    place.write_bytes(library[1])
    include = f"-I{ROOT / 'src/forerun/backends/cpu/cpp'}"
    python = ROOT / "build/wheel/tools/bin/python"
    said = {}
    for check in CHECKS:
        source = ROOT / f"tests/backends/cpu/{check}.cpp"
        program = tmp_path / f"{check}.exe"
        run(python, "-m", "ziglang", "c++", "-target", "x86_64-windows-gnu", "-O2", "-std=c++17", "-w", include,
            source, place, "-o", program)  # fmt: skip
        said[check] = run(str(WINE), program, WINEPREFIX=str(tmp_path / "wine"), WINEDEBUG="-all")
    here = bits_by_tier(tmp_path, next((ROOT / "src/forerun/backends/cpu").glob("libforerun_native.*")), "c++")
    there = tiers_and_bits(said["tier_bits"])
    assert set(here) <= set(there)
    assert set(here.values()) == set(there.values()), (here, there)
