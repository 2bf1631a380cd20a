"""Devices that forerun cannot run on are refused by name; one that stands idle is pointed at."""

import logging
import re
from typing import Any

import pytest
import torch

from forerun import ConfigError, Engine, EngineConfig, NoDrafter
from forerun.checkpoints.open import open_source
from forerun.engine import auto_device as placing
from forerun.engine import model_loading as loading
from forerun.engine.auto_device import Gpu, choose_device, settle_device
from forerun.engine.model_loading import hint_at_gpu


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("cuda:0", "torch sees no GPU for device 'cuda:0': choose cpu"),
        ("cuda:99", "GPU"),
        *((name, f"does not run on device '{name}': write cpu") for name in ("toaster", "gpu", "CPU", "cuda:x")),
        *((kind, f"does not run on device '{kind}' yet: write cpu, cuda") for kind in ("mps", "xpu")),
        *((kind, f"does not run on device '{kind}': write cpu, cuda") for kind in ("meta", "vulkan", "hip", "mkldnn")),
        ("mps:0", "does not run on device 'mps:0' yet"),
        ("paced:target=1ms;on=meta", "does not run on device 'meta'"),
    ],
)
def test_a_device_that_is_not_there_or_not_supported_is_named(device: str, told: str) -> None:
    if device == "cuda:0" and torch.cuda.is_available():
        pytest.skip("it is there")
    with pytest.raises(ConfigError, match=told):
        Engine(EngineConfig(device=device))


@pytest.fixture
def fresh_hint() -> None:
    hint_at_gpu.cache_clear()


@pytest.mark.usefixtures("fresh_hint")
def test_a_gpu_beside_the_default_device_is_pointed_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading.torch.cuda, "is_available", lambda: True)
    with caplog.at_level(logging.WARNING):
        hint_at_gpu("cuda:0")
        hint_at_gpu("paced:target=1ms")
        assert caplog.records == []
        for _ in range(2):
            Engine(EngineConfig(drafter=NoDrafter(), num_threads=1, max_length=32)).close()
    (record,) = [record for record in caplog.records if "GPU" in record.getMessage()]
    assert "--device cuda" in record.getMessage()


GIB = 2**30
SMALL = Gpu(name="small", free_bytes=8 * GIB)
LARGE = Gpu(name="large", free_bytes=80 * GIB)
BROKEN = Gpu(name="old", free_bytes=0, fault="no kernel image is available")


@pytest.mark.parametrize(
    ("gpus", "needed", "device", "told"),
    [
        ([], 1, "cpu", None),
        ([SMALL], 7, "cuda:0", None),
        ([SMALL, LARGE, LARGE], 7, "cuda:1", None),
        ([BROKEN, SMALL], 7, "cuda:1", None),
        ([SMALL, LARGE], 81, "cpu", "large has 80.0 GiB free, but model and caches need 81.0"),
        ([BROKEN], 1, "cpu", r"old fails at its first operation \(no kernel image is available\)"),
    ],
)
def test_auto_is_the_gpu_with_most_room_that_works_and_takes_the_model(
    gpus: list[Gpu], needed: int, device: str, told: str | None
) -> None:
    found, obstacle = choose_device(gpus, needed_bytes=needed * GIB)
    assert found == device
    assert re.match(told or "None", str(obstacle))


@pytest.mark.parametrize(
    ("settings", "device"),
    [
        ({}, "cpu"),
        ({"weights": "int4"}, "cuda:0"),
        ({"weights": "int4", "kernels": "torch"}, "cpu"),
        ({"weights": "int4", "cache": "int8"}, "cpu"),  # which Triton's kernels do not read
    ],
)
def test_a_gpu_takes_a_model_that_fits_in_the_bits_it_will_have_there(
    settings: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(drafter=NoDrafter(), device="auto", max_length=32, cache_bytes=0, **settings)
    spec = open_source(config.target).spec()
    monkeypatch.setattr(placing, "gpus_of_torch", lambda: [Gpu(name="x", free_bytes=2 * spec.num_parameters)])
    monkeypatch.setattr(placing, "has_triton", lambda checkpoint, exactness: checkpoint.conditions.kernels != "torch")
    assert settle_device(config).device == device


def test_auto_opens_an_engine_on_what_is_there() -> None:
    found = settle_device(EngineConfig(device="auto"))
    assert found.device == ("cuda:0" if torch.cuda.is_available() else "cpu")
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1, max_length=32, device="auto")) as engine:
        assert engine.config.device == found.device
