"""Every op measured and checked: what is covered, what counts as wrong, what a report says."""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import pairwise
from math import isfinite
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.backends.choose import FUSED, REFERENCE, Kernels
from forerun.bench import kernel_clock
from forerun.bench.ceilings import bytes_per_step
from forerun.bench.kernel_clock import MIN_BLOCKS, Block, Spread, time_in_turn, undisturbed
from forerun.bench.kernel_report import KernelPlan, KernelReport
from forerun.bench.kernel_shapes import ALL_SHAPES, read_shape
from forerun.bench.kernel_subject import Setting
from forerun.bench.kernel_subjects import BUILDERS, op_names, subjects
from forerun.bench.kernels import agree, max_difference, measure_kernels, read_cases, read_device, use_threads
from forerun.core.errors import ConfigError
from forerun.model.program import build_program
from forerun.runtime.affinity import usable_cores
from tests.bench.test_ceilings import CEILINGS

CPU = torch.device("cpu")
PLAN = KernelPlan(shapes=("builtin-draft",), rows=(1, 3), context=16, budget_s=1000.0, num_threads=1)


def setting(shape: str = "builtin-draft", dtype: torch.dtype = torch.float32) -> Setting:
    return Setting(spec=read_shape(shape), dtype=dtype, device=CPU, context=16)


@pytest.fixture(scope="module", autouse=True)
def _few_blocks() -> Iterator[None]:
    """Time as little as possible, so that no budget runs out however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_clock, "MAX_BLOCKS", MIN_BLOCKS)
        yield


@pytest.fixture(scope="module")
def report() -> KernelReport:
    return measure_kernels(PLAN)


def test_every_field_of_the_dispatch_table_is_an_op_that_is_measured(report: KernelReport) -> None:
    ops = {field.name for field in fields(Kernels)} - {"name", "row_exact"}
    assert set(op_names()) == ops
    assert set(BUILDERS) == ops, "an op without a builder is never measured, and a builder without an op never runs"
    assert {timing.op for timing in report.timings} == ops


def test_a_new_op_without_a_builder_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(BUILDERS, "rotate")
    with pytest.raises(AssertionError, match="rotate"):
        subjects(setting())


@pytest.mark.parametrize("shape", ALL_SHAPES)
def test_every_product_of_the_models_program_is_measured(shape: str) -> None:
    spec = read_shape(shape)
    num_products = sum(op.kind in ("linear", "linear_add") for op in build_program(spec))
    products = [subject for subject in subjects(setting(shape)) if subject.op == "pack_linear"]
    assert sum(subject.num_in_model for subject in products) == num_products
    assert {subject.part for subject in products} == {
        "qkv", "attention_out + residual", "gate_up", "mlp_out + residual", "head"
    }  # fmt: skip


def test_a_step_reads_all_that_the_products_and_attention_are_said_to_read() -> None:
    place = setting("1.1b", torch.bfloat16)
    copied = sum(subject.copy_bytes * subject.num_in_model for subject in subjects(place))
    assert copied == pytest.approx(bytes_per_step(place.spec, 2, place.context), rel=1e-3)


def test_the_fused_twins_are_right_and_every_number_is_finite(report: KernelReport) -> None:
    assert report.wrong == []
    assert report.left_out == ()
    assert {timing.num_rows for timing in report.timings} == {1, 3}
    for timing in report.timings:
        numbers = [timing.reference_s, timing.candidate_s, timing.ratio.median, timing.ratio.low, timing.ratio.high]
        assert all(isfinite(number) and number > 0.0 for number in numbers)
        assert isfinite(timing.floor_share)
        assert timing.max_difference is not None
        assert timing.num_pairs >= MIN_BLOCKS


def test_a_report_survives_json(report: KernelReport) -> None:
    values = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert KernelReport.from_dict(values) == report
    assert values["timings"][0]["floor_share"] == report.timings[0].floor_share


@pytest.mark.parametrize("change", [{"version": 2}, {"timings": [{}]}, {"plan": {}}, {"ceilings": {}}])
def test_what_is_no_report_is_refused(report: KernelReport, change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="no report on kernels"):
        KernelReport.from_dict(report.to_dict() | change)


def off(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The op with a result that is a little too large."""
    return lambda *arguments: op(*arguments) * 1.5


def seeing_all(mask: Any, **settings: Any) -> Any:
    """A mask in which every row sees its siblings."""
    everything = None if mask.ancestry_TW is None else torch.ones_like(mask.ancestry_TW)
    return FUSED.prepare_mask(replace(mask, ancestry_TW=everything), **settings)


BROKEN: dict[str, Callable[..., Any]] = {
    "pack_linear": lambda weight, bias: off(FUSED.pack_linear(weight, bias)),
    "pack_norm": lambda weight, eps: off(FUSED.pack_norm(weight, eps)),
    "rotate": off(FUSED.rotate),
    "silu_mul": off(FUSED.silu_mul),
    "prepare_mask": seeing_all,
    "tree_attention": off(FUSED.tree_attention),
}


@pytest.mark.parametrize("op", op_names())
def test_a_wrong_kernel_is_reported_as_wrong(op: str) -> None:
    broken: Kernels = replace(FUSED, name="broken", **{op: BROKEN[op]})
    report = measure_kernels(replace(PLAN, rows=(3,)), broken)
    assert report.candidate == "broken"
    attention = {"prepare_mask", "tree_attention"}  # a mask is judged by attention through it
    assert {timing.op for timing in report.wrong} == (attention if op in attention else {op})


def test_a_kernel_that_writes_to_its_input_is_wrong() -> None:
    def in_place(gate_up: Tensor) -> Tensor:
        width = gate_up.shape[-1] // 2
        return torch.nn.functional.silu(gate_up[:, :width], inplace=True) * gate_up[:, width:]

    spoiling = replace(FUSED, silu_mul=in_place)
    report = measure_kernels(replace(PLAN, rows=(3,)), spoiling)
    assert {timing.op for timing in report.wrong} == {"silu_mul"}


def test_results_that_cannot_be_compared_are_wrong() -> None:
    right = torch.ones(2, 3)
    for other in (torch.ones(3, 2), right.double(), right.clone().fill_(float("nan"))):
        assert max_difference(other, right) is None
        assert not agree(other, right, 1e9)
    assert max_difference(right + 0.5, right) == 0.5
    assert agree(right + 1e-6, right, 1e-5)


def test_what_the_budget_is_too_short_for_is_named() -> None:
    report = measure_kernels(replace(PLAN, budget_s=1e-9))
    assert report.timings == ()
    assert len(report.left_out) == len(subjects(setting()))
    assert "builtin-draft: rotate, q and k" in report.left_out


def test_weights_of_a_large_model_are_rotated_through_more_than_the_cache() -> None:
    ceilings = replace(CEILINGS, cache_bytes=1 << 20)
    cases = [case for case in read_cases("m", setting("125m"), ceilings) if case.subject.copy_bytes]
    assert cases
    for case in cases:
        assert not case.is_cached
        assert case.num_copies * case.subject.copy_bytes >= 2 * ceilings.cache_bytes


def test_a_model_that_fits_into_the_cache_is_measured_there() -> None:
    place = setting()
    step_bytes = bytes_per_step(place.spec, 4, place.context)
    cases = list(read_cases("m", place, replace(CEILINGS, cache_bytes=step_bytes)))
    assert all(case.is_cached for case in cases)
    assert {case.num_copies for case in cases} == {1, place.spec.num_layers}
    cases = list(read_cases("m", place, replace(CEILINGS, cache_bytes=step_bytes - 1)))
    assert {case.subject.op for case in cases if not case.is_cached} == {"pack_linear", "tree_attention"}


def test_the_least_bytes_and_operations_of_a_product_and_of_attention() -> None:
    place = setting(dtype=torch.bfloat16)
    costs = {subject.part: subject.cost(3) for subject in subjects(place)}
    product = costs["attention_out + residual"]
    assert product.moved_bytes == 2 * (160 * 160 + 3 * (160 + 160 + 160))
    assert product.num_operations == 2 * 3 * 160 * 160
    attention = costs["16 tokens"]
    assert attention.moved_bytes == 2 * (2 * 19 * 32 + 2 * 3 * 160)
    assert attention.num_operations == 4 * 3 * 19 * 160


def test_copies_hold_the_same_values_in_places_of_their_own() -> None:
    linear = next(subject for subject in subjects(setting()) if subject.op == "pack_linear")
    seen: list[Tensor] = []

    def remember(weight: Tensor, bias: Tensor | None) -> Any:
        seen.append(weight)
        return REFERENCE.pack_linear(weight, bias)

    bound = linear.bind(replace(REFERENCE, pack_linear=remember), 3)(2)
    assert len({weight.data_ptr() for weight in seen}) == len(bound.calls) == 3
    first, *others = (call() for call in bound.calls)
    assert all(torch.equal(first, other) for other in others)


def test_sides_take_turns_and_go_round_their_copies() -> None:
    log: list[str] = []
    sides = [[lambda name=name: log.append(name) for name in names] for names in (("a0", "a1"), ("b0", "b1"))]
    rounds = time_in_turn(sides, CPU, budget_s=0.0)
    assert len(rounds) == MIN_BLOCKS
    turns = [name[0] for name in log]
    num_switches = sum(left != right for left, right in pairwise(turns))
    assert num_switches == 1 + 2 * MIN_BLOCKS  # a to b in the warm-up, and between the blocks
    assert abs(log.count("a0") - log.count("a1")) <= 2


QUIET = (Block(call_s=1.0), Block(call_s=1.0, lost=0.01))
NOISY = (Block(call_s=9.0, lost=0.5), Block(call_s=1.0))


def test_disturbed_rounds_do_not_count() -> None:
    assert undisturbed([NOISY, *[QUIET] * MIN_BLOCKS]) == [QUIET] * MIN_BLOCKS


@pytest.mark.parametrize(("num_threads", "call_s"), [(1, 4.5), (2, 9.0)])
def test_with_too_few_quiet_rounds_the_least_disturbed_count_and_one_threads_loss_is_taken_off(
    num_threads: int, call_s: float
) -> None:
    worse = (Block(call_s=99.0, lost=0.9), Block(call_s=1.0))
    with use_threads(num_threads):
        chosen = undisturbed([worse, *[NOISY] * MIN_BLOCKS])
    assert chosen == [(Block(call_s=call_s, lost=0.5), Block(call_s=1.0))] * MIN_BLOCKS


def test_a_spread_is_median_and_quartiles() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(median=3.0, low=2.0, high=4.0)
    assert Spread.of([7.0]) == Spread(median=7.0, low=7.0, high=7.0)


def test_the_number_of_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    with use_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rows": (0,)}, "rows"),
        ({"rows": ()}, "rows"),
        ({"shapes": ()}, "shapes"),
        ({"dtype": "int8"}, "dtype"),
        ({"budget_s": 0.0}, "budget"),
        ({"context": 0}, "context"),
        ({"num_threads": usable_cores() + 1}, "num_threads"),
    ],
)
def test_an_impossible_plan_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        replace(PLAN, **change)


def test_an_unknown_shape_or_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'70b'.*8b"):
        measure_kernels(replace(PLAN, shapes=("70b",)))
    with pytest.raises(ConfigError, match="choose cpu"):
        read_device("tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no GPU"):
            read_device("cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_are_measured_on_a_gpu(dtype: str) -> None:
    report = measure_kernels(replace(PLAN, device="cuda", dtype=dtype))
    assert report.wrong == []
    assert {timing.op for timing in report.timings} == set(op_names())
