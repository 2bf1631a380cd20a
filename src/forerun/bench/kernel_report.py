"""What is asked of `forerun bench kernels`, and what it answers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from forerun.bench.ceilings import DTYPES, Ceilings
from forerun.bench.kernel_clock import Spread
from forerun.bench.kernel_shapes import USUAL_SHAPES
from forerun.bench.machine import Facts
from forerun.core.errors import ConfigError, require
from forerun.runtime.affinity import usable_cores

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPlan:
    """What to measure.

    Args:
        shapes: names of architectures, see `kernel_shapes`.
        rows: numbers of rows of a pass.
        dtype: "float32" or "bfloat16".
        device: "cpu" or a CUDA device.
        num_threads: CPU threads; None leaves torch's own choice.
        context: tokens in the cache.
        budget_s: seconds for everything; what does not fit is left out, and the report says what.
    """

    shapes: tuple[str, ...] = USUAL_SHAPES
    rows: tuple[int, ...] = (1, 8, 16, 32)
    dtype: str = "float32"
    device: str = "cpu"
    num_threads: int | None = None
    context: int = 512
    budget_s: float = 120.0

    def __post_init__(self) -> None:
        cores = usable_cores()
        require(self.dtype in DTYPES, f"dtype {self.dtype!r} must be one of {', '.join(DTYPES)}")
        require(bool(self.shapes), "no shapes: name at least one")
        require(bool(self.rows) and min(self.rows) >= 1, f"rows {self.rows} must be numbers of at least 1")
        require(self.context >= 1, f"context {self.context} must be >= 1")
        require(self.budget_s > 0, f"a budget of {self.budget_s} s must be > 0")
        require(
            self.num_threads is None or 1 <= self.num_threads <= cores,
            f"num_threads {self.num_threads} must lie in [1, {cores}], the cores there are: more only wait for others",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTiming:
    """One use of an op on one number of rows: both twins in turn, and whether they agree.

    Args:
        shape, op, part: architecture, field of `Kernels`, place in the model.
        is_cached: its weights, or keys and values, came from the cache, as they do when the whole model fits in.
        num_copies: copies of them that were gone round.
        reference_s, candidate_s: median seconds per call.
        ratio: reference over candidate, of each pair of blocks.
        moved_bytes, num_operations: what no implementation can do without.
        floor_s: the least time for that by the measured ceilings.
        max_difference: between the twins' results; None where they cannot be compared: another shape or dtype, or NaN.
        is_right: the results agree within the tolerance of the parity tests.
        num_pairs: pairs of blocks that count.
        num_discarded: pairs that do not, since others took part of their time.
        lost: share of the time of the pairs that count which others took. More than a little where too few pairs were
            quiet: with one thread it is taken off the times, which are estimates then.
    """

    shape: str
    op: str
    part: str
    num_rows: int
    is_cached: bool
    num_copies: int
    reference_s: float
    candidate_s: float
    ratio: Spread
    moved_bytes: int
    num_operations: int
    floor_s: float
    max_difference: float | None
    is_right: bool
    num_pairs: int
    num_discarded: int
    lost: float

    @property
    def floor_share(self) -> float:
        """The floor over the candidate's time: 1 is perfect. In cache it may exceed 1, where a nearer one helps."""
        return self.floor_s / self.candidate_s


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """All timings with their circumstances. `left_out` names what the budget was too short for."""

    machine: Facts
    plan: KernelPlan
    candidate: str
    ceilings: Ceilings
    timings: tuple[KernelTiming, ...]
    left_out: tuple[str, ...] = ()

    @property
    def wrong(self) -> list[KernelTiming]:
        """Timings whose result is not the reference's."""
        return [timing for timing in self.timings if not timing.is_right]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; each timing with its `floor_share`."""
        values = asdict(self) | {"version": VERSION}
        pairs = zip(values["timings"], self.timings, strict=True)
        values["timings"] = [plain | {"floor_share": timing.floor_share} for plain, timing in pairs]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "KernelReport":
        """The report that `to_dict` gave, also by way of JSON.

        Raises:
            ConfigError: these values are something else.
        """
        try:
            if values["version"] != VERSION:
                raise ConfigError(f"version {values['version']}, this forerun reads {VERSION}")
            plan = dict(values["plan"])
            return cls(
                machine=dict(values["machine"]),
                plan=KernelPlan(**plan | {"shapes": tuple(plan["shapes"]), "rows": tuple(plan["rows"])}),
                candidate=str(values["candidate"]),
                ceilings=Ceilings.from_dict(values["ceilings"]),
                timings=tuple(read_timing(timing) for timing in values["timings"]),
                left_out=tuple(values["left_out"]),
            )
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise ConfigError(
                f"this is no report on kernels ({type(error).__name__}: {error}): make one with forerun bench kernels"
            ) from error


def read_timing(values: Mapping[str, Any]) -> KernelTiming:
    own = {name: value for name, value in values.items() if name != "floor_share"}
    return KernelTiming(**own | {"ratio": Spread(**own["ratio"])})
