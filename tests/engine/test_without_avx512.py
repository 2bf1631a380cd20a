"""CPUs without AVX-512, where oneDNN multiplies no bfloat16 and MKL computes six rows at once: every engine opens, and
takes bfloat16 by itself only where the native kernels run."""

import subprocess
import sys

import pytest
import torch

from forerun import EngineConfig
from forerun.backends import dtypes
from forerun.backends.cpu.binding import fault
from forerun.checkpoints.open import open_source
from forerun.core.config import DTypeName, KernelsName
from forerun.engine.model_loading import Checkpoint
from tests.cli.conftest import environment

PROGRAM = """
import torch
from forerun import Engine, EngineConfig, NoDrafter, SamplingParams

for dtype, weights, exactness in (
    ("auto", "stored", "fast"), ("auto", "int8", "exact"), ("float64", "stored", "exact"),
    ("bfloat16", "stored", "exact"), ("bfloat16", "int4", "fast"),
):
    config = EngineConfig(
        drafter=NoDrafter(), kernels="torch", dtype=dtype, weights=weights, exactness=exactness, num_threads=1,
        max_length=64,
    )
    with Engine(config) as engine:
        found = engine.generate("def f(x):", SamplingParams(max_new_tokens=3))
        print(engine.dtype_name, engine.kernels_name, len(found.token_ids))
"""


@pytest.mark.slow
def test_torchs_kernels_run_and_are_exact_with_what_such_a_cpu_has() -> None:
    held = environment(ONEDNN_MAX_CPU_ISA="AVX2", ATEN_CPU_CAPABILITY="avx2", MKL_ENABLE_INSTRUCTIONS="AVX2")
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=held, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "float32 fused 3", "int8 reference 3", "float64 reference 3", "bfloat16 reference 3", "int4 fused 3",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kernels", "num_ranks", "num_remote"), [("torch", 1, 0), ("torch", 2, 0), ("auto", 2, 1), ("auto", 3, 1)]
)
@pytest.mark.parametrize("is_fast", [True, False])
def test_bfloat16_is_taken_by_itself_only_by_kernels_that_multiply_it(
    kernels: KernelsName, num_ranks: int, num_remote: int, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "has_fast_bfloat16", lambda: is_fast)

    def dtype(asked: DTypeName) -> torch.dtype:
        config = EngineConfig(
            dtype=asked, kernels=kernels, target_ranks=num_ranks, remote_ranks=num_remote,
            rank_address="127.0.0.1:0" if num_remote else None,
        )  # fmt: skip
        return Checkpoint.open(open_source("builtin"), config).dtype

    assert dtype("auto") == (torch.bfloat16 if is_fast else torch.float32)
    assert dtype("bfloat16") == torch.bfloat16


@pytest.mark.skipif(fault() is not None, reason="no native kernels")
def test_the_native_kernels_multiply_bfloat16_on_every_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "has_fast_bfloat16", lambda: False)
    assert Checkpoint.open(open_source("builtin"), EngineConfig()).dtype == torch.bfloat16
