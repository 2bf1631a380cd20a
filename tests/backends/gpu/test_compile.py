"""Every kernel compiles for the GPUs that it is meant for, and stays within what they have. No GPU is needed."""

import re
from itertools import chain
from typing import Any

import pytest

from tests.backends.gpu.expected_speed import Expected, idle_seconds
from tests.backends.gpu.separate import ROOT, run_compiled

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(1200)  # seconds of one core are minutes on a busy machine

MOST_STACK_BYTES = 64  # some numbers put by before a loop until after it cost nothing
OLDEST_WITH_OVERLAP = 90
NUM_LINEAR_KERNELS = 6  # qkv, head, and four of plain linear layers
NUM_RANKS = 8  # of the compile cases
EVERY_ROW = 1024  # no pass has more rows
ALL = ".*"
# What is compiled a second time with another argument waits for the slow tests.
AGAIN = (
    "mapped", "window", "scaled", "scaled queries", "factor alone", "grow first", "walk", "draw_tiles, topk",
    "sum_partials", "linear, branch", "gelu", "multiply_experts, plain", "text_attention, wide heads",
    "text_attention, window and sinks",
)  # fmt: skip
ONCE = rf"(?!(.*, )?({'|'.join(AGAIN)})$).*"
TYPICAL = (  # architecture, most rows, model, cases: each kernel once, where no test below asks for more
    (90, 8, "any model", ONCE), (90, 8, "Llama-3.1-8B", ONCE), (80, 1, "Llama-3.2-1B", "tree_attention"),
    (90, 64, "Llama-3.1-8B", "text_attention"), (90, 8, "Llama-3.1-8B int4", "qkv|linear_add, mlp|linear_gate"),
    (90, 8, "Llama-3.1-8B bfloat16", ONCE), (90, 64, "newer families", ONCE),
)  # fmt: skip
# Lane instructions of the inner loop for each int4 weight, by rows: memory at 4.3 TB/s leaves time for 3.4 on 132
# processors. Then the inputs of a step, and the outputs of a program.
INT4_BUDGETS = {8: (2.2, 256), 32: (2.9, 128)}
INT4_OUTPUTS = 128
INT4_KERNELS = ("qkv_kernel", "linear_add_kernel", "linear_gate_kernel")
LANES = 32
MOST_IDLE = 0.03  # of a layer's time
LEAST_SHARE = 0.85  # of the bandwidth, while a kernel runs
MODELS = (
    "any model", "newer families", "Llama-3.2-1B", "Llama-3.1-8B", "Llama-3.1-70B", "Llama-3.2-1B bfloat16",
    "Llama-3.1-8B bfloat16", "Llama-3.1-8B int8", "Llama-3.1-8B int4", "Llama-3.1-70B int4",
)  # fmt: skip


@pytest.fixture(scope="module")
def typical() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run_compiled("compile_report.py", *chain(*TYPICAL))
    return found


def faults_of(compile_cases: list[dict[str, Any]]) -> list[str]:
    """What is wrong with some compile_cases, a line for each."""
    faults = []
    for case in compile_cases:
        for kernel in case["kernels"]:
            place = f"{kernel['kernel']} in {case['name']}"
            if kernel["loop_spills"]:
                faults.append(f"{place}: {kernel['loop_spills']} spills in loops")
            if kernel["stack_bytes"] > MOST_STACK_BYTES:
                faults.append(f"{place}: {kernel['stack_bytes']} bytes of spilled registers")
            if not kernel["fits"]:
                faults.append(f"{place}: {kernel['shared_bytes']} bytes of shared memory")
        if case["is_product"] and not any(kernel["products"] for kernel in case["kernels"]):
            faults.append(f"{case['name']}: no matrix instructions")
    return faults


def int4_overruns(compile_cases: list[dict[str, Any]]) -> list[str]:
    """Loops over int4 weights with more instructions a weight than are meant, a line for each."""
    overruns = []
    num_checked = 0
    for case in compile_cases:
        rows = int(re.findall(r", (\d+) rows", case["name"])[0])
        for kernel in case["kernels"]:
            if " int4, " in case["name"] and rows in INT4_BUDGETS and kernel["kernel"] in INT4_KERNELS:
                budget, step = INT4_BUDGETS[rows]
                lanes = sum(kernel["loop_instructions"].values()) * kernel["num_warps"] * LANES
                num_checked += 1
                assert lanes, f"{case['name']}: the loop is unrolled, and so nothing is counted"
                if lanes / (step * INT4_OUTPUTS) > budget:
                    overruns.append(f"{case['name']}: {lanes / (step * INT4_OUTPUTS):.2f} lane instructions a weight")
    assert num_checked, "no kernels with int4 weights"
    return overruns


def test_typical_kernels_compile_and_stay_within_bounds(typical: list[dict[str, Any]]) -> None:
    assert faults_of(typical) == []


def test_int4_weights_take_few_instructions(typical: list[dict[str, Any]]) -> None:
    assert int4_overruns(typical) == []


def test_the_partials_of_all_ranks_are_under_way_together(typical: list[dict[str, Any]]) -> None:
    found = [kernel for case in typical for kernel in case["kernels"] if kernel["kernel"] == "add_partials_kernel"]
    assert found
    for kernel in found:
        copies = [count for name, count in kernel["instructions"].items() if name.startswith("LDGSTS")]
        assert sum(copies) >= NUM_RANKS, kernel["architecture"]


def test_weights_are_asked_for_before_the_kernel_ahead_has_ended(typical: list[dict[str, Any]]) -> None:
    found = [kernel for case in typical for kernel in case["kernels"] if kernel["architecture"] >= OLDEST_WITH_OVERLAP]
    linears = [kernel for kernel in found if kernel["kernel"].startswith(("linear", "qkv", "head"))]
    assert len({kernel["kernel"] for kernel in linears}) == NUM_LINEAR_KERNELS
    assert all(kernel["early_prefetches"] for kernel in linears)


def test_memory_hardly_rests_between_the_kernels_of_a_layer(typical: list[dict[str, Any]]) -> None:
    """By arithmetic: an H100, 8 rows, Llama-3.1-8B in bfloat16."""
    names = {"qkv": "qkv", "linear_add, attention": "attention", "linear_gate": "gate_up", "linear_add, mlp": "mlp"}
    place = " of Llama-3.1-8B bfloat16, 8 rows, for sm_90"
    found = {case["name"].removesuffix(place): case for case in typical if case["name"].endswith(place)}
    layer = {short: Expected(**found[name]["kernels"][0]["expected"]) for name, short in names.items()}
    busy = sum(kernel.seconds for kernel in layer.values())
    idle = idle_seconds(layer)
    assert idle <= MOST_IDLE * (busy + idle)
    assert all(kernel.share > LEAST_SHARE for kernel in layer.values())


def test_every_kernel_that_is_launched_has_a_compile_case(typical: list[dict[str, Any]]) -> None:
    sources = (ROOT / "src/forerun/backends/gpu").rglob("*.py")
    launched = {name for source in sources for name in re.findall(r"^    (\w+)\[.*\]\($", source.read_text(), re.M)}
    assert len(launched) > 10, launched
    assert {kernel["kernel"] for case in typical for kernel in case["kernels"]} == launched


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("model", MODELS)
def test_all_kernels_compile_and_stay_within_bounds(architecture: int, model: str) -> None:
    compile_cases = run_compiled("compile_report.py", architecture, EVERY_ROW, model, ALL)
    assert compile_cases, model
    assert faults_of(compile_cases) == []
    if model.endswith("int4"):
        assert int4_overruns(compile_cases) == []


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 86, 89, 90, 100, 120])
def test_every_dtype_and_head_size_compiles_within_bounds(architecture: int) -> None:
    found = run_compiled("compile_heads.py", architecture)  # Triton refuses what does not fit shared memory
    assert len(found) > 50
    assert [each for each in found if each["loop_spills"] or each["stack_bytes"] > MOST_STACK_BYTES] == []
