"""How linear layers are best divided between programs: each number of the tiles changed alone, then the best together.

Rows of 8 decide; 32 rows are measured for the default and the best.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from forerun.backends.gpu.pass_shape import PassShape
from forerun.backends.gpu.passes.packed_linear import DeviceLinear, pack
from forerun.backends.gpu.passes.tiles import Tiles
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model.quantise import output_format
from forerun.model.weights import Weight
from forerun_lab.bench.run.call_times import Call
from forerun_lab.checks.gpu.cases import Case, Row, Setting
from forerun_lab.checks.gpu.clock import time_calls
from forerun_lab.checks.gpu.layers import LINEARS, Layers, reduced
from forerun_lab.checks.gpu.models import DTYPE, Model, models, quantise_at_random

MODELS = ("8b bf16", "8b int4", "70b int4", "1b bf16", "1b int4")
DECIDING_ROWS = 8
OTHER_ROWS = 32
GAIN = 0.98  # of the default's time: less is no gain
MOST_COMBINED = 6
OUTPUTS = {"qkv": "q", "attention_out": "x", "gate_up": "gated", "mlp_out": "x"}
ALIKE = 0.05  # largest difference of two divisions' results, relative to the largest value: more is a fault


def cases(setting: Setting) -> Iterator[Case]:
    for model in models(setting, *(MODELS[-1:] if setting.is_rehearsal else MODELS[: 2 if setting.is_quick else None])):
        for kernel in LINEARS:
            yield Case(
                name=f"{model}: {kernel}",
                run=partial(measure, model, kernel, setting),
                warm=partial(compile_all, model, kernel, setting),
            )


def measure(model: Model, kernel: str, setting: Setting) -> Iterable[Row]:
    return Bench(model, kernel, setting).run()


def compile_all(model: Model, kernel: str, setting: Setting) -> None:
    Bench(model, kernel, setting, most_layers=2).warm()


def alternatives(tiles: Tiles, kernel: str, setting: Setting) -> list[Tiles]:
    """The tiles with one number changed; wider or narrower blocks also with as many programs as before."""
    found: list[Tiles] = []
    if kernel != "qkv":  # there a program does a head
        for block_out in (16, 32, 64, 128, 256):
            found.append(replace(tiles, block_out=block_out))
            num_splits = max(1, round(tiles.num_splits * block_out / tiles.block_out))
            found.append(replace(tiles, block_out=block_out, num_splits=num_splits))
    found += [replace(tiles, block_in=block_in) for block_in in (64, 128, 256, 512)]
    splits = {1, tiles.num_splits // 2, round(tiles.num_splits * 0.75), round(tiles.num_splits * 1.5)}
    splits |= {tiles.num_splits + 1, 2 * tiles.num_splits, 3 * tiles.num_splits}
    found += [replace(tiles, num_splits=number) for number in sorted(splits) if number >= 1]
    found += [replace(tiles, num_warps=number) for number in (1, 2, 4, 8)]
    found += [replace(tiles, num_stages=number) for number in (2, 3, 4, 5, 6, 8)]
    distinct = [choice for choice in dict.fromkeys(found) if choice != tiles]
    return distinct[:: len(distinct) // 2] if setting.is_rehearsal else distinct


@dataclass(slots=True)
class Timed:
    tiles: Tiles
    seconds: float
    num_copies: int
    moved_bytes: int


class Bench:
    """A linear layer of a model, to be divided in many ways."""

    def __init__(self, model: Model, kernel: str, setting: Setting, most_layers: int = 64) -> None:
        self._model = model
        self._kernel = kernel
        self._setting = setting
        spec = reduced(model, kernel, setting)
        self._spec = replace(spec, num_layers=min(most_layers, spec.num_layers))
        with torch.inference_mode():
            self._layers = Layers.make(model, self._spec, setting)
            self._names = self._layers.packed(kernel)
            self._weights = [quantise_at_random(self._plain(), self._format, self._setting.device) for _ in self._names]
        self._default = next(iter(self._names.values())).tiles
        self._expected: Tensor | None = None

    @property
    def _format(self) -> WeightFormat:
        return output_format(self._model.weight_format) if self._kernel == "head" else self._model.weight_format

    def _plain(self) -> Tensor:
        packed = next(iter(self._names.values()))
        shape = (packed.num_out, packed.num_in)
        device = self._setting.device
        if self._format != "plain":
            return torch.zeros(1, 1, dtype=DTYPE, device=device).expand(shape)
        return torch.randn(shape, dtype=DTYPE, device=device).mul_(packed.num_in**-0.5)

    @torch.inference_mode()
    def warm(self) -> None:
        for tiles in [self._default, *alternatives(self._default, self._kernel, self._setting)]:
            shapes = (DECIDING_ROWS, OTHER_ROWS) if tiles == self._default else (DECIDING_ROWS,)
            for num_rows in shapes:
                try:
                    _, calls = self._divided(tiles)
                    for call in calls(self._layers.aim(num_rows)):
                        call()
                except Exception as fault:  # noqa: BLE001 (some divisions do not fit; they are noted by `run`)
                    print(tiles, fault)

    @torch.inference_mode()
    def run(self) -> Iterator[Row]:
        default = self._time(self._default)
        yield self._row("default", default)
        singles = list[Timed]()
        together = list[Timed]()
        yield from self._try("tried", alternatives(self._default, self._kernel, self._setting), singles)
        changes = combined(self._default, default.seconds, singles)
        yield from self._try("combined", changes[: 1 if self._setting.is_rehearsal else None], together)
        best = min([default, *singles, *together], key=lambda one: one.seconds)
        best = best if best.seconds < GAIN * default.seconds else default
        more = {"gain": default.seconds / best.seconds}
        for what, timed in (("default", default), ("best", best)):
            more[f"{what}_us_{OTHER_ROWS}"] = 1e6 * self._time(timed.tiles, OTHER_ROWS).seconds
        yield self._row("best", best) | {"default_us": 1e6 * default.seconds} | more

    def _try(self, what: str, choices: Iterable[Tiles], found: list[Timed]) -> Iterator[Row]:
        """Time some divisions while there is time, a row for each; those that run are added to `found`."""
        for tiles in choices:
            if self._setting.left_s < 0:
                break
            try:
                found.append(self._time(tiles))
            except Exception as fault:  # noqa: BLE001 (too much shared memory, say)
                lines = str(fault).strip().splitlines() or [""]
                row = {"model": str(self._model), "kernel": self._kernel, "what": "fault", **asdict(tiles)}
                yield row | {"fault": f"{type(fault).__name__}: {lines[-1][:160]}"}
            else:
                yield self._row(what, found[-1])

    def _time(self, tiles: Tiles, num_rows: int = DECIDING_ROWS) -> Timed:
        """Check the result against the default's, then time it."""
        shape = self._layers.aim(num_rows)
        output, calls_for = self._divided(tiles)
        calls = calls_for(shape)
        if num_rows == DECIDING_ROWS:
            self._check(calls, output, shape)
        seconds = time_calls(calls, self._setting.device, budget_s=0.06).median
        moved_bytes = self._layers.moved_bytes(self._kernel, num_rows)
        return Timed(tiles, seconds, len(calls), moved_bytes)

    def _divided(self, tiles: Tiles) -> tuple[Tensor, Callable[[PassShape], list[Call]]]:
        """The kernel's output and its launches, the weights divided in this way."""
        with patch("forerun.backends.gpu.passes.packed_linear.choose_tiles", lambda *_shape, **_more: tiles):
            packed = {
                name: pack_like(weight, self._kernel, self._spec)
                for name, weight in zip(self._names, self._weights, strict=True)
            }
        buffers, calls = self._layers.with_packed(self._kernel, packed)
        is_head = self._kernel == "head"
        return self._layers.executor.logits_RV if is_head else getattr(buffers, OUTPUTS[self._kernel]), calls

    def _check(self, calls: list[Call], output: Tensor, shape: PassShape) -> None:
        for call in calls:
            call()
        actual = output[: shape.num_rows].float().clone()
        if self._expected is None:
            self._expected = actual
        error = (actual - self._expected).abs().max() / self._expected.abs().max()
        assert error < ALIKE, f"other results than the default's: {float(error)}"

    def _row(self, what: str, timed: Timed) -> Row:
        share = self._setting.floor_share(timed.moved_bytes, timed.seconds)
        row = {"model": str(self._model), "kernel": self._kernel, "what": what, **asdict(timed.tiles)}
        return row | {"us": 1e6 * timed.seconds, "ceiling_share": share}


def combined(default: Tiles, default_s: float, singles: list[Timed]) -> list[Tiles]:
    """The changes that gained most, two or more of them at a time."""
    gains: dict[str, dict[str, Any]] = {}  # by the first number that is changed
    for timed in sorted(singles, key=lambda one: one.seconds):
        changed = {name: value for name, value in asdict(timed.tiles).items() if value != getattr(default, name)}
        if timed.seconds < GAIN * default_s:
            gains.setdefault(next(iter(changed)), changed)
    groups = [group for size in (2, 3, 4) for group in combinations(gains.values(), size)]
    found = [replace(default, **dict(ChainMap(*reversed(group)))) for group in groups]
    return list(dict.fromkeys(found))[:MOST_COMBINED]


def pack_like(weight: Weight, kernel: str, spec: ModelSpec) -> DeviceLinear:
    return pack(
        weight, None, compute=DTYPE, paired=kernel == "gate_up", head_dim=spec.head_dim if kernel == "qkv" else None
    )
