"""All instruction sets give the same bits: products of every format, and whole passes; those of Arm in an emulator.

The portable kernels are left out: they multiply and add floats in two roundings, for want of an instruction.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import torch
from torch import Tensor

import forerun
from forerun.backends.cpu.backend import EIGHT_BIT_INPUTS, NATIVE
from forerun.backends.cpu.binding import fault, library
from forerun.core.model_spec import CacheFormat
from forerun.model.executor import ForwardInput
from forerun.model.gguf_block_types import BLOCKS
from forerun.model.runner import Runner
from tests.backends.cpu.conftest import TIERS
from tests.backends.cpu.test_block_weights import BlockSource, spec_of
from tests.backends.cpu.test_linear import FORMATS, packed, random_tensor, weight_of

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))
CPP: Final = Path(forerun.__file__).parent / "backends/cpu"
ARM: Final = ("aarch64-linux-gnu-g++", "qemu-aarch64", "cmake")
SHAPES: Final = ((33, 100), (50, 640), (70, 1152), (96, 256))
FEW_ROWS: Final = (1, 2, 3, 5, 8, 13, 40, 97)  # the last more than are multiplied with one panel after another
FUSED: Final = tuple(tier for tier in TIERS if tier != "portable")


@pytest.fixture(autouse=True)
def best_tier_afterwards() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    if fault() is None:
        library().forerun_select_tier(None)


def tiers_here() -> list[str]:
    return [tier for tier in FUSED if library().forerun_select_tier(tier.encode())]


def differing(name: str, shape: tuple[int, int], num_rows: int, seed: int) -> tuple[int, list[str]]:
    """How many products were compared with those of the first instruction set on one thread, and which differed."""
    num_checks = 0
    wrong = []
    expected = None
    linear = packed(name, weight_of(name, *shape))
    x_TI = random_tensor(num_rows, linear.descriptor.num_in, seed=seed)
    for tier in tiers_here():
        library().forerun_select_tier(tier.encode())
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            y_TO = linear(x_TI)
            expected = y_TO if expected is None else expected
            num_checks += 1
            if not torch.equal(y_TO, expected):
                wrong.append(f"{tier}, {name}, {shape}, {num_rows} rows, {num_threads} threads")
    return num_checks, wrong


@pytest.mark.parametrize("name", FORMATS)
def test_products_have_the_same_bits_with_every_instruction_set(name: str) -> None:
    for shape in SHAPES[1:3]:
        for num_rows in FEW_ROWS:
            assert differing(name, shape, num_rows, seed=num_rows)[1] == []


def logits_of(types: tuple[str, ...], dtype: torch.dtype, num_rows: int, *, bits: int, cache: CacheFormat) -> Tensor:
    torch.manual_seed(3)
    spec = spec_of(is_tied=True)
    backend = EIGHT_BIT_INPUTS if bits == 8 else NATIVE
    source = BlockSource(spec, types, "Q8_0")  # type: ignore[arg-type]
    runner = Runner(spec, source, backend=backend, capacity=256, dtype=dtype, device="cpu", cache_format=cache)
    token_ids = [idx % spec.vocab_size for idx in range(num_rows)]
    runner.cache.reserve(num_rows)
    inputs = ForwardInput(
        token_ids=token_ids, positions=list(range(num_rows)), first_slot=0, prefix_len=0, ancestry=None,
        num_logit_rows=num_rows,
    )  # fmt: skip
    with torch.inference_mode():
        return runner.forward(inputs).logits


@pytest.mark.parametrize(("bits", "cache"), [(16, "model"), (8, "model"), (16, "int8")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("types", [("Q4_1",), tuple(BLOCKS)], ids="+".join)
def test_whole_passes_have_the_same_bits_with_every_instruction_set(
    types: tuple[str, ...], dtype: torch.dtype, bits: int, cache: CacheFormat
) -> None:
    for num_rows in (1, 9, 150):
        expected = None
        for tier in tiers_here():
            library().forerun_select_tier(tier.encode())
            logits = logits_of(types, dtype, num_rows, bits=bits, cache=cache)
            expected = logits if expected is None else expected
            assert torch.equal(logits, expected), (tier, num_rows)


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def bits_by_tier(folder: Path, library_path: Path, compiler: str, *emulator: str) -> dict[str, str]:
    """What tests/backends/cpu/tier_bits.cpp prints for each instruction set."""
    source = Path(__file__).with_name("tier_bits.cpp")
    program = folder / f"bits_{compiler}"
    run(compiler, "-O1", "-std=c++17", f"-I{CPP / 'cpp'}", source, library_path, "-o", program, cwd=folder)
    return tiers_and_bits(run("env", f"LD_LIBRARY_PATH={library_path.parent}", *emulator, program, cwd=folder))


def tiers_and_bits(printed: str) -> dict[str, str]:
    """The rest of each line by its first word, an instruction set."""
    return {tier: rest for tier, _, rest in (line.partition(" ") for line in printed.splitlines())}


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_a_build_for_this_machine_alone_compiles(tmp_path: Path) -> None:
    """Its files that name instruction sets, which tests of all of them would not show to be broken."""
    configured = run("env", "-u", "FORERUN_ALL_TIERS", "cmake", "-G", "Unix Makefiles", CPP, cwd=tmp_path)
    built = re.search("kernels for (.+)", configured)
    assert built, configured
    assert built[1].split(";") in ([TIERS[0]], [TIERS[0], library().forerun_tier().decode()])
    for name in ("dispatch", "peak"):
        run("make", f"cpp/{name}.o", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(any(shutil.which(name) is None for name in ARM), reason=f"needs {', '.join(ARM)}")
def test_arm_has_the_same_bits_in_an_emulator(tmp_path: Path) -> None:
    run("cmake", "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={ARM[0]}", CPP,
        cwd=tmp_path)  # fmt: skip
    run("cmake", "--build", ".", cwd=tmp_path)
    arm = bits_by_tier(
        tmp_path, tmp_path / "libforerun_native.so", ARM[0], "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu",
        "-E", f"LD_LIBRARY_PATH={tmp_path}",
    )  # fmt: skip
    here = bits_by_tier(tmp_path, next(CPP.glob("libforerun_native.*")), "g++")
    assert set(arm) == {"neon"}
    assert set(here.values()) == set(arm.values()), (here, arm)
