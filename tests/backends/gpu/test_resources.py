"""What is read of kernels' machine code, on kernels of which it is known."""

from typing import Any

import pytest

from tests.backends.gpu.separate import run_compiled

pytest.importorskip("triton")
pytestmark = pytest.mark.slow  # what these readers are for is tested in test_compile


@pytest.fixture(scope="module")
def probes() -> dict[str, Any]:
    """What the script reports."""
    found: dict[str, Any] = run_compiled("compile_probes.py")
    return found


def test_each_architecture_multiplies_by_its_own_instructions(probes: dict[str, Any]) -> None:
    ampere, hopper = probes["80"]["multiply"], probes["90"]["multiply"]
    assert ampere["instructions"]["HMMA.16816.F32.BF16"] == 64**3 // (16 * 8 * 16) // 4  # four warps share the products
    assert ampere["products"] == ampere["instructions"]["HMMA.16816.F32.BF16"]
    assert hopper["products"] == hopper["instructions"]["HGMMA.64x64x16.F32.BF16"] == 64 // 16


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_registers_and_shared_memory_are_read(probes: dict[str, Any], architecture: str) -> None:
    multiply = probes[architecture]["multiply"]
    assert 32 < multiply["registers"] < 128
    assert 64 * 64 * 2 <= multiply["shared_bytes"] <= 3 * 64 * 64 * 2
    assert multiply["num_warps"] == 4


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_too_many_values_for_the_registers_are_seen_to_spill(probes: dict[str, Any], architecture: str) -> None:
    hoard, multiply = probes[architecture]["hoard"], probes[architecture]["multiply"]
    assert hoard["stack_bytes"] >= (384 - 255) * 4
    assert 0 < hoard["loop_spills"] < hoard["local"]  # fetched in the loop, saved before it
    assert multiply["stack_bytes"] == multiply["local"] == multiply["loop_spills"] == 0


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_a_launch_is_compiled_as_it_would_have_run(probes: dict[str, Any], architecture: str) -> None:
    launched = probes[architecture]["launched"]
    is_hopper = architecture == "90"
    assert launched["num_programs"] == 6
    assert launched["overlaps"] is is_hopper
    assert launched["waits"] == is_hopper
    aligned, crooked = launched["wide_loads"]
    assert aligned > 0
    assert crooked == 0  # the address of the second launch is no multiple of 16


def test_missing_tools_are_named(probes: dict[str, Any]) -> None:
    assert "cuobjdump: install Triton's own wheel for Linux" in probes["complaint"]
