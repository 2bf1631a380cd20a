"""Every op of the dispatch table timed against its reference, its result checked, and held against the ceilings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, isfinite
from time import perf_counter
from typing import Final

import torch
from torch import Tensor

from forerun.backends.choose import FUSED, REFERENCE, Kernels
from forerun.bench.ceilings import Ceilings, bytes_per_step, measure_ceilings
from forerun.bench.kernel_clock import Spread, mean_lost, time_in_turn, undisturbed
from forerun.bench.kernel_report import KernelPlan, KernelReport, KernelTiming
from forerun.bench.kernel_shapes import read_shape
from forerun.bench.kernel_subject import Bound, Setting, Subject
from forerun.bench.kernel_subjects import subjects
from forerun.bench.machine import describe_machine
from forerun.core.errors import ConfigError
from forerun.engine.loading import find_device, has_fast_bfloat16

# By how much twins may differ, absolutely and relatively: the tolerances of the parity tests.
TOLERANCES: Final = {"float32": 1e-5, "bfloat16": 3e-2}
TIMES_CACHE: Final = 2  # copies of weights to go round, in sizes of the last-level cache, so that none stays in it
CEILINGS_SHARE: Final = 0.1  # of the budget
MOST_CEILINGS_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One use of an op in one of the models, and how its weights are laid out for it."""

    shape: str
    setting: Setting
    subject: Subject
    is_cached: bool
    num_copies: int

    @property
    def name(self) -> str:
        return f"{self.shape}: {self.subject.op}, {self.subject.part}"


def measure_kernels(plan: KernelPlan, candidate: Kernels = FUSED) -> KernelReport:
    """Time `candidate` against the reference on everything the plan names.

    Raises:
        ConfigError: an unknown shape, or a device that is not there.
    """
    deadline = perf_counter() + plan.budget_s
    device = read_device(plan.device)
    settings = {shape: read_setting(shape, plan, device) for shape in plan.shapes}
    timings: list[KernelTiming] = []
    left_out: list[str] = []
    with use_threads(plan.num_threads), torch.inference_mode():
        machine = describe_machine()
        ceilings_s = min(MOST_CEILINGS_S, CEILINGS_SHARE * plan.budget_s)
        ceilings = measure_ceilings(plan.device, dtypes=(plan.dtype,), budget_s=ceilings_s)
        cases = [case for shape, setting in settings.items() for case in read_cases(shape, setting, ceilings)]
        for number, case in enumerate(cases):
            share_s = (deadline - perf_counter()) / (len(cases) - number)
            if share_s > 0:
                timings += measure_case(case, plan.rows, candidate, ceilings=ceilings, budget_s=share_s)
            else:
                left_out.append(case.name)
    return KernelReport(
        machine=machine,
        plan=plan,
        candidate=candidate.name,
        ceilings=ceilings,
        timings=tuple(timings),
        left_out=tuple(left_out),
    )


def read_setting(shape: str, plan: KernelPlan, device: torch.device) -> Setting:
    return Setting(spec=read_shape(shape), dtype=getattr(torch, plan.dtype), device=device, context=plan.context)


def read_cases(shape: str, setting: Setting, ceilings: Ceilings) -> Iterator[Case]:
    """What to measure on a model, and where its weights come from.

    A model that fits into the last-level cache stays there: its calls go round as many copies as it has layers. One
    that does not fit leaves nothing behind for its next pass: the copies are TIMES_CACHE times the cache.
    """
    fits = bytes_per_step(setting.spec, setting.dtype.itemsize, setting.context) <= ceilings.cache_bytes
    for subject in subjects(setting):
        is_cached = fits or subject.copy_bytes == 0
        num_rotated = 1 if is_cached else ceil(TIMES_CACHE * ceilings.cache_bytes / subject.copy_bytes)
        yield Case(
            shape=shape,
            setting=setting,
            subject=subject,
            is_cached=is_cached,
            num_copies=subject.num_in_model if is_cached else num_rotated,
        )


def measure_case(
    case: Case, rows: tuple[int, ...], candidate: Kernels, *, ceilings: Ceilings, budget_s: float
) -> list[KernelTiming]:
    """Pack the weights once, then measure every number of rows; at least a few blocks of each, whatever they take."""
    deadline = perf_counter() + budget_s
    binders = [case.subject.bind(kernels, case.num_copies) for kernels in (REFERENCE, candidate)]
    timings = []
    for number, num_rows in enumerate(rows):
        sides = [at(num_rows) for at in binders]
        share_s = (deadline - perf_counter()) / (len(rows) - number)
        timings.append(measure_rows(case, num_rows, sides, ceilings=ceilings, budget_s=share_s))
    return timings


def measure_rows(case: Case, num_rows: int, sides: list[Bound], *, ceilings: Ceilings, budget_s: float) -> KernelTiming:
    setting, cost = case.setting, case.subject.cost(num_rows)
    dtype = str(setting.dtype).removeprefix("torch.")
    rounds = time_in_turn([side.calls for side in sides], setting.device, budget_s=budget_s)
    quiet = undisturbed(rounds)
    reference_s, candidate_s = (
        Spread.of([block.call_s for block in column]).median for column in zip(*quiet, strict=True)
    )
    # Last, so that a twin that spoils its own inputs is found out.
    expected, actual = (side.comparable(side.calls[-1]()) for side in sides)
    return KernelTiming(
        shape=case.shape,
        op=case.subject.op,
        part=case.subject.part,
        num_rows=num_rows,
        is_cached=case.is_cached,
        num_copies=case.num_copies,
        reference_s=reference_s,
        candidate_s=candidate_s,
        ratio=Spread.of([slow.call_s / fast.call_s for slow, fast in quiet]),
        moved_bytes=cost.moved_bytes,
        num_operations=cost.num_operations,
        floor_s=ceilings.floor_s(
            moved_bytes=cost.moved_bytes,
            num_operations=cost.num_operations,
            dtype=dtype,
            is_cached=case.is_cached,
        ),
        max_difference=max_difference(actual, expected),
        is_right=agree(actual, expected, TOLERANCES[dtype]),
        num_pairs=len(quiet),
        num_discarded=len(rounds) - len(quiet),
        lost=mean_lost(quiet),
    )


def max_difference(actual: Tensor, expected: Tensor) -> float | None:
    """The largest difference of two results; None where that is not a number."""
    if not are_alike(actual, expected):
        return None
    largest = float((actual.double() - expected.double()).abs().max())
    return largest if isfinite(largest) else None


def agree(actual: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether two results are the same up to `tolerance`, absolute and relative; NaN is never the same."""
    if not are_alike(actual, expected):
        return False
    return torch.allclose(actual.double(), expected.double(), atol=tolerance, rtol=tolerance)


def are_alike(actual: Tensor, expected: Tensor) -> bool:
    return actual.shape == expected.shape and actual.dtype == expected.dtype


def read_device(name: str) -> torch.device:
    """A device that is there.

    Raises:
        ConfigError: it is not, or it is neither a CPU nor a CUDA device.
    """
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"kernels cannot be measured on device {name!r}: choose cpu or a CUDA device")
    return find_device(name)


def usual_dtype(device: str) -> str:
    """What large models compute in on such a device."""
    return "bfloat16" if device.startswith("cuda") or has_fast_bfloat16() else "float32"


@contextmanager
def use_threads(num_threads: int | None) -> Iterator[None]:
    """Let torch compute with so many threads, and with those of before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if num_threads is None else num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
