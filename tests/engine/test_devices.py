"""Devices that forerun cannot run on are refused by name; one that stands idle is pointed at."""

import logging

import pytest
import torch

from forerun import ConfigError, Engine, EngineConfig, NoDrafter
from forerun.engine import model_loading as loading
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
