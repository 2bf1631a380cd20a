"""Projected times of passes on machines that we do not have, computed from sizes. They are not measurements.

The time of a pass is the longer of two: reading a unit's part of weights and cache at the share of the bandwidth that
kernels reach, or the arithmetic. Every layer adds two all-reduces and a time for launches and norms. A unit's part is
that of a shard plan, padding included, so uneven degrees cost more.

An all-reduce is one-shot: the time of a short message, plus the messages of all other units over the unit's own link.
SGLang's takes 5.7 us on eight H100 and 3.7 to 4.8 on two to four (sgl-project/sglang, pull request 2904); links give
200 GB/s a direction on an H800, 450 on an H100. With the bandwidth below that gives SwiftSpec's products with the sum
after them (arXiv 2506.11309, table 8) within 9 % for attention of 1B to 70B on 4 GPUs and 70B on 8, and within 3 %
for the MLP of 8B and 70B; those of 1B and 3B come out 21 and 14 % too short. It puts 8 and 16 rows of 8192 on eight
H100 at 7.7 and 9.8 us.

For 8xH800 the following is fitted to SwiftSpec's published times (int4 weights, short contexts). Layer times on 4, 6
and 8 GPUs: 10.39 ms of Llama-3-70B on 4, 10.48 and 10.34 ms of Qwen2-72B on 6 and 8, all at 8 rows. Cost of rows: 10.39
and 13.25 ms at 8 and 16, and the same increase for each further 8 rows; fewer than 8 rows are not cheaper (10.32 ms at
4). Layer times on 1 and 2 GPUs follow the paper's table 1 (vLLM on 1, 2, 4 and 8 GPUs), scaled to the paper's own
kernels on 4. The share of the bandwidth follows from these times.

8xH800-floor is not a measurement but the shortest times that our kernels could reach there: five kernels per layer with
1.3 us between two in a recorded graph (Hazy Research, on an H100), nine tenths of the bandwidth, as measured on an
H200, int4 products that cost the same up to 16 rows, like Marlin's, and the same all-reduces.

If a time of a model is known (an anchor), the roofline is scaled to it at that number of units; between anchors the
scale is interpolated, beyond them it is that of the nearest. This matters most for drafts: Qwen2-1.5B takes 3.25 ms on
2 GPUs in table 7, while the roofline gives 1.6.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any, Final

from forerun.checkpoints.known_models import INT4_BYTES
from forerun.core.drafter_config import MAX_RANKS
from forerun.core.errors import ConfigError
from forerun.core.model_spec import ModelSpec
from forerun.core.pace import Pace
from forerun.sharding.plan import ShardPlan, plan_shards, why_indivisible
from forerun_lab.planner.profile import Profile

BYTES_PER_WEIGHT: Final = {4: INT4_BYTES, 8: 1.016, 16: 2.0}  # scales and zeros of groups of 128 included
HEAD_BYTES = 2.0  # per element; the head stays in 16 bit, as with AWQ
CACHE_BYTES = 2  # per element
GROUP_SIZE: Final = 128  # inputs that share a scale; a unit's part of the MLP holds whole groups
SUMS_PER_LAYER = 2  # after attention and after the MLP
SUM_BYTES = 2  # per element
MEMORY_SHARE: Final = 0.9  # of a unit's memory, available for weights and cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A known time of a model's pass."""

    model: str
    weight_bits: int
    units: int
    rows: int
    ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The specification of a machine; see machines.toml."""

    name: str
    unit: str
    num_units: int
    memory_gb: float
    bandwidth_gb_s: float
    share: float
    teraflops: float
    layer_us: Mapping[int, float]
    row_cost: Sequence[tuple[int, float]]
    all_reduce_us: Mapping[int, float] = field(default_factory=dict)
    link_gb_s: float = inf
    anchors: Sequence[Anchor] = ()

    def all_reduce_s(self, units: int, num_bytes: float) -> float:
        """Seconds of an all-reduce of `num_bytes` over `units` units.

        It is one-shot: each unit reads the messages of all others over its own link.
        """
        if units == 1 or not self.all_reduce_us:
            return 0.0
        return 1e-6 * between(self.all_reduce_us, units) + (units - 1) * num_bytes / (1e9 * self.link_gb_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedModel:
    """The facts about a model that the roofline needs."""

    name: str
    spec: ModelSpec
    weight_bits: int = 4

    def __post_init__(self) -> None:
        if self.weight_bits not in BYTES_PER_WEIGHT:
            known = ", ".join(map(str, BYTES_PER_WEIGHT))
            raise ConfigError(f"weights of {self.weight_bits} bit: choose among {known}")
        if self.spec.num_experts:
            raise ConfigError(
                f"{self.name} has experts, of which each row of a pass reads a few, so the time of a pass does not "
                "follow from sizes: measure it with --calibrate, on a machine that has the model"
            )

    @property
    def most_units(self) -> int:
        """The largest number of units that can share the model."""
        return 1 if why_indivisible(self.spec) else MAX_RANKS

    def plan(self, units: int) -> ShardPlan:
        """The part of each of `units` units; all are of equal size, padding included."""
        return plan_shards(self.spec, units, group_size=1 if self.weight_bits == 16 else GROUP_SIZE)[0]

    def layer_weights(self, units: int = 1) -> int:
        """Number of weights that a unit multiplies with in a pass, without the head."""
        return self.plan(units).weight_elements(self.spec) - self._vocab_weights(units)

    def stored_bytes(self, units: int = 1) -> float:
        """Bytes of weights that a unit holds: its part of layers and head, and the whole embedding."""
        return self.layer_weights(units) * BYTES_PER_WEIGHT[self.weight_bits] + self._vocab_weights(units) * HEAD_BYTES

    def pass_bytes(self, context: int, units: int = 1) -> float:
        """Bytes that a unit reads in a pass: layers, head and the cache of a text of `context` tokens."""
        weights = self.layer_weights(units) * BYTES_PER_WEIGHT[self.weight_bits] + self._head(units) * HEAD_BYTES
        return weights + self.cache_bytes(context, units)

    def cache_bytes(self, context: int, units: int = 1) -> int:
        """Bytes of a unit's part of the cache of a text of `context` tokens."""
        return context * self.plan(units).local(self.spec).kv_bytes_per_token(CACHE_BYTES)

    def pass_flops(self, num_rows: int, units: int = 1) -> float:
        return 2.0 * (self.layer_weights(units) + self._head(units)) * num_rows

    def _head(self, units: int) -> int:
        return self.plan(units).vocab.size * self.spec.hidden_size

    def _vocab_weights(self, units: int) -> int:
        """Elements of the embedding, which is whole on every unit, and of a unit's part of an untied head."""
        return self.spec.vocab_size * self.spec.hidden_size + (0 if self.spec.tied_embeddings else self._head(units))


def roofline_profile(machine: Machine, target: SizedModel, draft: SizedModel, *, context: int = 512) -> Profile:
    """The profile of a pair on a machine, without numbers of units on which a model does not fit into memory.

    Raises:
        ConfigError: the target does not fit on any number of units.
    """
    paces = {
        role: {
            units: pace_of(machine, model, units, context)
            for units in range(1, min(machine.num_units, model.most_units) + 1)
            if fits(machine, model, units, context)
        }
        for role, model in (("target", target), ("draft", draft))
    }
    if not paces["target"]:
        raise ConfigError(
            f"{target.name} with weights of {target.weight_bits} bit needs {target.stored_bytes() / 1e9:.0f} GB, "
            f"{machine.name} has {machine.num_units} x {machine.memory_gb:g} GB"
            f"{', among which it cannot be divided' if target.most_units == 1 else ''}: take fewer bits or a larger "
            "machine"
        )
    return Profile(
        source="roofline",
        unit=machine.unit,
        target=paces["target"],
        draft=paces["draft"],
        about={
            "machine": machine.name,
            "target": f"{target.name}, {target.weight_bits} bit",
            "draft": f"{draft.name}, {draft.weight_bits} bit",
            "context": str(context),
        },
    )


def fits(machine: Machine, model: SizedModel, units: int, context: int) -> bool:
    """Whether every unit has room for its part of weights and cache."""
    needed = model.stored_bytes(units) + model.cache_bytes(context, units)
    return needed <= MEMORY_SHARE * 1e9 * machine.memory_gb


def pace_of(machine: Machine, model: SizedModel, units: int, context: int) -> Pace:
    """Times of a model's pass on a number of units, by rows."""
    scale = anchored_scale(machine, model, units, context)
    return Pace(
        steps=tuple((rows, scale * pass_s(machine, model, units, rows, context)) for rows, _ in machine.row_cost)
    )


def pass_s(machine: Machine, model: SizedModel, units: int, rows: int, context: int) -> float:
    """Seconds of a pass by the roofline alone, without anchors."""
    cost = next((cost for most_rows, cost in machine.row_cost if rows <= most_rows), machine.row_cost[-1][1])
    reading_s = cost * model.pass_bytes(context, units) / (machine.share * machine.bandwidth_gb_s * 1e9)
    computing_s = model.pass_flops(rows, units) / (machine.teraflops * 1e12)
    summing_s = SUMS_PER_LAYER * machine.all_reduce_s(units, rows * model.spec.hidden_size * SUM_BYTES)
    layer_s = 1e-6 * between(machine.layer_us, units) + summing_s
    return max(reading_s, computing_s) + model.spec.num_layers * layer_s


def anchored_scale(machine: Machine, model: SizedModel, units: int, context: int) -> float:
    """The factor from the roofline to known times; 1 if there are none."""
    known = {
        anchor.units: 1e-3 * anchor.ms / pass_s(machine, model, anchor.units, anchor.rows, context)
        for anchor in machine.anchors
        if anchor.model == model.name and anchor.weight_bits == model.weight_bits
    }
    return between(known, units) if known else 1.0


def between(points: Mapping[int, float], place: int) -> float:
    """The value at `place`, interpolated linearly between points; beyond them it is that of the nearest."""
    below = max((known for known in points if known <= place), default=min(points))
    above = min((known for known in points if known >= place), default=max(points))
    if below >= above:
        return points[above if place <= above else below]
    part = (place - below) / (above - below)
    return (1.0 - part) * points[below] + part * points[above]


def machine_named(name: str) -> Machine:
    """The machine of this name, or the machine that a TOML file describes.

    Raises:
        ConfigError: there is no such machine, or the file does not describe one.
    """
    if name.endswith(".toml"):
        return read_machine(Path(name))
    machines = tomllib.loads((files("forerun_lab.planner") / "machines.toml").read_text(encoding="utf-8"))
    if name not in machines:
        raise ConfigError(f"no machine is named {name!r}: choose among {', '.join(machines)}, or give a TOML file")
    return parse_machine(name, machines[name])


def read_machine(path: Path) -> Machine:
    """The machine that a TOML file describes, with the keys of machines.toml at top level."""
    try:
        return parse_machine(path.stem, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"the machine {path} cannot be read ({error})") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{path} describes no machine ({type(error).__name__}: {error}): it needs unit, num_units, memory_gb, "
            "bandwidth_gb_s, share, teraflops, layer_us and row_cost; all_reduce_us, link_gb_s and anchors may be left "
            "out"
        ) from error


def parse_machine(name: str, values: Mapping[str, Any]) -> Machine:
    tables = ("layer_us", "all_reduce_us", "row_cost", "anchors")
    rest = {key: value for key, value in values.items() if key not in tables}
    row_cost = sorted((int(rows), float(cost)) for rows, cost in values["row_cost"])
    machine = Machine(
        name=name,
        layer_us=by_units(values["layer_us"]),
        all_reduce_us=by_units(values.get("all_reduce_us", {})),
        row_cost=tuple(row_cost),
        anchors=tuple(Anchor(**anchor) for anchor in values.get("anchors", ())),
        **rest,
    )
    rates = (machine.bandwidth_gb_s, machine.share, machine.teraflops, machine.link_gb_s)
    if min(machine.num_units, machine.memory_gb, *rates) <= 0 or not machine.layer_us or not machine.row_cost:
        raise ValueError("its numbers must be more than 0, layer_us and row_cost not empty")
    return machine


def by_units(values: Mapping[str, Any]) -> dict[int, float]:
    return {int(units): float(value) for units, value in values.items()}
