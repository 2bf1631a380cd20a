"""A device that a model does not fit: one line for its user, and nothing left open."""

from unittest.mock import patch

import pytest
import torch

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.engine.engine import Engine

OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 1.00 GiB. If reserved but unallocated memory is large, set this"


def test_a_device_without_memory_is_named_with_what_needs_less(target: str) -> None:
    full = patch("forerun.model.runner.TreeCache", side_effect=torch.OutOfMemoryError(OUT_OF_MEMORY))
    with full, pytest.raises(ConfigError) as caught:
        Engine(EngineConfig(target=target, device="cpu"))
    assert str(caught.value) == (
        f"{target} and its drafter do not fit into the memory of cpu: CUDA out of memory. Tried to allocate 1.00 GiB. "
        "Smaller weights (int8, int4), a smaller max_length or a smaller draft need less memory; "
        'device "cpu" uses the main memory'
    )


def test_a_kernel_that_triton_refuses_is_named(target: str) -> None:
    errors = pytest.importorskip("triton.runtime.errors")
    refused = patch(
        "forerun.engine.opening.warm_up", side_effect=errors.OutOfResources(294912, 232448, "shared memory")
    )
    with refused, pytest.raises(ConfigError, match=r"shared memory, Required: 294912.*run there"):
        Engine(EngineConfig(target=target, device="cpu"))


def test_any_other_error_stays_what_it_is(target: str) -> None:
    broken = patch("forerun.engine.opening.warm_up", side_effect=ZeroDivisionError("a bug"))
    with broken, pytest.raises(ZeroDivisionError, match="a bug"):
        Engine(EngineConfig(target=target, device="cpu"))
