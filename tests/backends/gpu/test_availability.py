"""Why the Triton kernels cannot run, told before anything of them is imported."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch

from forerun.backends.gpu.availability import fault


def fake_triton(
    monkeypatch: pytest.MonkeyPatch,
    *,
    version: str = "3.6.0",
    interpret: bool = False,
    start: Callable[[], object] = lambda: "a target",
) -> None:
    triton = ModuleType("triton")
    triton.__version__ = version
    triton.knobs = SimpleNamespace(runtime=SimpleNamespace(interpret=interpret))
    triton.runtime = SimpleNamespace(driver=SimpleNamespace(active=SimpleNamespace(get_current_target=start)))
    monkeypatch.setitem(sys.modules, "triton", triton)


def fake_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), shared_kib: int = 1 << 20) -> None:
    properties = SimpleNamespace(shared_memory_per_block_optin=shared_kib << 10)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def ask(device: str = "cuda", *, dtype: torch.dtype = torch.bfloat16, head_dim: int = 128) -> str | None:
    return fault(device, dtype=dtype, head_dim=head_dim)


def test_a_gpu_with_triton_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton(monkeypatch)
    fake_gpu(monkeypatch, (8, 0))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for head_dim in (16, 32, 64, 128, 256):
            assert ask("cuda:0", dtype=dtype, head_dim=head_dim) is None


def test_the_interpreter_runs_on_the_cpu_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton(monkeypatch, interpret=True)
    fake_gpu(monkeypatch)
    assert ask("cpu") is None
    assert ask("cuda") == "Triton's interpreter is on, which computes on the CPU"


def test_a_cpu_without_the_interpreter_is_no_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton(monkeypatch)
    assert ask("cpu") == "there is no CUDA device"


@pytest.mark.parametrize(("module", "name", "value"), [
    (torch.cuda, "is_available", lambda: False), (torch.version, "cuda", None),  # another maker's GPU
])  # fmt: skip
def test_torch_without_a_device_is_named(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: object
) -> None:
    fake_triton(monkeypatch)
    fake_gpu(monkeypatch)
    monkeypatch.setattr(module, name, value)
    assert ask() == "there is no CUDA device"


def test_an_old_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton(monkeypatch)
    fake_gpu(monkeypatch, (7, 5))
    assert ask() == "the GPU has compute capability 7.5, and the Triton kernels need 8.0"


def test_too_many_query_heads_of_a_key_head_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton(monkeypatch)
    fake_gpu(monkeypatch)
    assert fault("cuda", dtype=torch.bfloat16, head_dim=64, group=32) is None
    answer = fault("cuda", dtype=torch.bfloat16, head_dim=64, group=64)
    most = "the Triton kernels take at most"
    place = "query heads of a key head in bfloat16 with heads of 64 numbers"
    assert answer == f"{most} 32 {place}, and these have 64"
    assert fault("cuda", dtype=torch.float32, head_dim=128, group=16) is None
    assert str(fault("cuda", dtype=torch.float32, head_dim=128, group=17)).startswith(f"{most} 16 query heads")


@pytest.mark.parametrize(
    ("shared_kib", "dtype", "head_dim", "needed_kib"),
    [
        (99, torch.bfloat16, 128, None),
        (99, torch.float32, 64, None),
        (99, torch.bfloat16, 256, 152),
        (99, torch.float32, 128, 160),
        (163, torch.float32, 128, None),
        (163, torch.float32, 256, 304),
        (227, torch.float32, 256, 304),
        (227, torch.float16, 256, None),
    ],
)
def test_heads_that_do_not_fit_shared_memory_are_named(
    monkeypatch: pytest.MonkeyPatch, shared_kib: int, dtype: torch.dtype, head_dim: int, needed_kib: int | None
) -> None:
    fake_triton(monkeypatch)
    fake_gpu(monkeypatch, (8, 9), shared_kib)
    answer = ask(dtype=dtype, head_dim=head_dim)
    if needed_kib is None:
        assert answer is None
    else:
        assert answer is not None
        assert f"takes {needed_kib} KiB of shared memory, and a program has {shared_kib} KiB" in answer


def test_gpus_of_a_shared_model_have_to_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_triton(monkeypatch)
    fake_gpu(monkeypatch)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: other != 2)
    shared = fault("cuda:1", dtype=torch.bfloat16, head_dim=128, is_shared=True)
    assert shared is not None
    assert shared.startswith("GPU 0 cannot reach the memory of GPU 2")
    assert ask("cuda:1") is None
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    assert fault("cuda:1", dtype=torch.bfloat16, head_dim=128, is_shared=True) is None


@pytest.mark.parametrize(
    ("version", "is_fit"),
    [("3.5.1", False), ("2.9.0", False), ("3.6.0", True), ("3.10.0+git1a2b3c", True), ("4.0.0", True)],
)
def test_triton_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch, version: str, is_fit: bool) -> None:
    fake_triton(monkeypatch, version=version)
    fake_gpu(monkeypatch)
    assert ask() == (None if is_fit else f"Triton {version} is too old: 3.6 or later is needed")


def test_asking_about_a_dtype_imports_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it is an error
    fake_gpu(monkeypatch)
    assert ask(dtype=torch.float64) == "the Triton kernels do not compute in float64"
    assert "not installed" in str(ask())
