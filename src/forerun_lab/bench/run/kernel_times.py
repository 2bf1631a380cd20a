"""Measure the time of each op of a model's passes on this machine, within whole passes.

A model's weights exceed the caches, so an op that is repeated alone would find its weights in the cache, which it does
not in a pass. Here the ops of a pass run in order, each in its own call, alternating with the same pass in one call.

Of passes and of machine measurements the fastest quarter counts, because other programs only add time. The times of ops
are taken from whole passes, so that they and the remainder add up to the pass.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from statistics import fmean
from time import perf_counter
from typing import Final

import torch

from forerun.backends.backend import InputKind, KernelProbe, OpTimes, OpWork
from forerun.model.executor import ForwardInput
from forerun.model.pass_times import star
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun_lab.bench.records.kernel_costs import OpCost, PassCosts
from forerun_lab.bench.run.machine import last_level_cache_bytes

CONTEXT: Final = 64  # tokens before the rows, fewer if the model has fewer positions
LEAST_REPEATS: Final = 3
MOST_REPEATS: Final = 25
READ_BYTES: Final = 64 << 20  # per read: a few milliseconds
LEAST_READ_BYTES: Final = 256 << 20  # smallest whole buffer, so that a part is not cached when it is read again
MOST_READ_BYTES: Final = 1 << 30  # a limit, because virtual machines report the cache of the whole host
PASSES_IN_TURN: Final = 4  # of passes with few rows, in every repeat; a prompt takes long enough alone
READS: Final = 4  # in every repeat
PEAK_ROUNDS: Final = 20_000  # of 96 products or more on each thread: about 0.1 ms
PEAK_CALLS: Final = 8  # in every repeat
INPUT_KINDS: Final[tuple[InputKind, ...]] = ("float32", "bfloat16", "int16", "int8")

OnStep = Callable[[int, int], None]
Kind = tuple[bool, int]  # whether the pass is a prompt, and its rows
Peaks = Mapping[InputKind, float]


class Measurement:
    """Measures all kinds of passes of a model in turn."""

    def __init__(self, runner: Runner, probe: KernelProbe, *, rows: Sequence[int], prompts: Sequence[int]) -> None:
        self._runner = runner
        self._probe = probe
        self.context = max(0, min(CONTEXT, runner.spec.max_positions - max(rows, default=0)))
        self._kinds: list[Kind] = [*((False, number) for number in rows), *((True, number) for number in prompts)]
        self._taken: dict[Kind, list[list[tuple[float, OpTimes]]]] = {kind: [] for kind in self._kinds}
        total = min(MOST_READ_BYTES, max(LEAST_READ_BYTES, 2 * last_level_cache_bytes(torch.device("cpu"))))
        self._memory = torch.ones(total // READ_BYTES, READ_BYTES, dtype=torch.uint8)
        self._read_s: list[float] = []
        self._peaks: dict[InputKind, list[float]] = {kind: [] for kind in INPUT_KINDS}  # seconds per multiply-add

    @torch.inference_mode()
    def run(self, budget_s: float, on_step: OnStep) -> int:
        """Measure everything in turn while the budget lasts, at least LEAST_REPEATS times; returns the repeats."""
        self._runner.sync(self._token_ids(0, self.context))
        began = perf_counter()
        repeats = 0
        while repeats < LEAST_REPEATS or (repeats < MOST_REPEATS and perf_counter() - began < budget_s):
            self._measure_machine()
            for number, kind in enumerate(self._kinds):
                on_step(len(self._kinds) * repeats + number, len(self._kinds) * max(LEAST_REPEATS, repeats + 1))
                self._taken[kind] += self._time(kind)
            repeats += 1
        return repeats

    def read_bytes_per_s(self) -> float:
        """Read bandwidth of memory outside the caches."""
        return 1.0 / fmean(fastest_quarter(self._read_s)) * READ_BYTES

    def peaks_per_s(self) -> Peaks:
        """Peak multiply-adds per second of the instructions; unknown ones are left out."""
        peaks = {kind: 1.0 / fmean(fastest_quarter(values)) for kind, values in self._peaks.items() if values}
        if "bfloat16" in peaks:  # kernels may also convert to float32, which is faster on some processors
            peaks["bfloat16"] = max(peaks["bfloat16"], peaks["float32"])
        return peaks

    def passes(self) -> list[PassCosts]:
        """The time of each kind of pass, by op."""
        return [self._costs(kind) for kind in self._kinds]

    def _measure_machine(self) -> None:
        for _ in range(READS):
            part = self._memory[len(self._read_s) % len(self._memory)]
            self._read_s.append(seconds_of(partial(self._probe.read, part)))
        for kind, peaks in self._peaks.items():
            for _ in range(PEAK_CALLS):
                began = perf_counter()
                multiply_adds = self._probe.multiply_adds(kind, PEAK_ROUNDS)
                if multiply_adds:
                    peaks.append((perf_counter() - began) / multiply_adds)

    def _time(self, kind: Kind) -> list[list[tuple[float, OpTimes]]]:
        """Measure repeatedly: for each pass of this kind, its seconds in one call and those of its ops."""
        passes = self._inputs(kind)
        run = self._runner.executor.run
        run(passes[0])  # warm up code and buffers for this width
        return [
            [(seconds_of(partial(run, inputs)), self._probe.time_ops(inputs)) for inputs in passes]
            for _ in range(1 if kind[0] else PASSES_IN_TURN)
        ]

    def _inputs(self, kind: Kind) -> list[ForwardInput]:
        """The passes of a prompt as the runner divides it, or one pass over a small tree after a text."""
        is_prompt, num_rows = kind
        if not is_prompt:
            return [self._pass(self.context, num_rows, is_tree=True)]
        starts = range(0, num_rows, PREFILL_ROWS)
        return [self._pass(start, min(PREFILL_ROWS, num_rows - start), is_tree=False) for start in starts]

    def _pass(self, start: int, num_rows: int, *, is_tree: bool) -> ForwardInput:
        return ForwardInput(
            token_ids=self._token_ids(start, num_rows),
            positions=list(range(start, start + num_rows)),
            first_slot=start,
            prefix_len=start,
            ancestry=star(num_rows) if is_tree and num_rows > 1 else None,
            num_logit_rows=num_rows if is_tree else 0,
        )

    def _token_ids(self, start: int, number: int) -> list[int]:
        return [place % self._runner.spec.vocab_size for place in range(start, start + number)]

    def _costs(self, kind: Kind) -> PassCosts:
        taken = self._taken[kind]
        works = []
        times_s = []
        pass_s = 0.0
        for number, inputs in enumerate(self._inputs(kind)):
            works += self._probe.work(inputs)
            times_s += own_times([repeat[number][1] for repeat in taken])
            pass_s += fmean(fastest_quarter([repeat[number][0] for repeat in taken]))
        is_prompt, num_rows = kind
        ops = sum_up(works, times_s, self.peaks_per_s())
        return PassCosts(is_prompt=is_prompt, num_rows=num_rows, pass_s=pass_s, ops=ops)


def own_times(times: Sequence[OpTimes]) -> list[float]:
    """Seconds of each op without the cost of its call: means over the fastest quarter of passes."""
    fastest = sorted(times, key=lambda one: sum(one.ops_s))[: ceil(len(times) / 4)]
    call_s = min(one.call_s for one in times)
    return [max(0.0, fmean(seconds) - call_s) for seconds in zip(*(one.ops_s for one in fastest), strict=True)]


def fastest_quarter(seconds: Sequence[float]) -> list[float]:
    """The shortest quarter of some times, at least one."""
    return sorted(seconds)[: ceil(len(seconds) / 4)]


def sum_up(works: Sequence[OpWork], times_s: Sequence[float], peaks: Peaks) -> list[OpCost]:
    """Sum ops of the same name and format, in the order of a pass."""
    groups: dict[tuple[str, str], list[tuple[OpWork, float]]] = {}
    for work, time_s in zip(works, times_s, strict=True):
        groups.setdefault((work.name, work.weights), []).append((work, time_s))
    return [
        OpCost(
            name=name,
            weights=weights,
            num_ops=len(group),
            num_bytes=sum(work.num_bytes for work, _ in group),
            multiply_adds=sum(work.multiply_adds for work, _ in group),
            time_s=sum(time_s for _, time_s in group),
            peak_per_s=peaks.get(group[0][0].inputs),
        )
        for (name, weights), group in groups.items()
    ]


def seconds_of(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began
