"""The times of the ops in a model's passes, compared with the machine's memory bandwidth and peak arithmetic."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """All ops of one kind in a pass, summed over its layers.

    Args:
        name: the kind of op.
        weights: the format of their weights; "" if they have none.
        num_ops: number of ops.
        num_bytes: bytes of weights, or of keys and values, that they read.
        multiply_adds: number of multiply-adds.
        time_s: seconds that they take.
        peak_per_s: peak multiply-adds per second of the instructions for these weights; None: not known.
    """

    name: str
    weights: str
    num_ops: int
    num_bytes: int
    multiply_adds: int
    time_s: float
    peak_per_s: float | None

    def read_share(self, read_bytes_per_s: float) -> float | None:
        """The bandwidth reached, as a share of the memory's read bandwidth; None if no bytes are counted."""
        return self.num_bytes / self.time_s / read_bytes_per_s if self.num_bytes and self.time_s else None

    @property
    def peak_share(self) -> float | None:
        """Multiply-adds per second, as a share of the peak."""
        if not self.multiply_adds or not self.time_s or not self.peak_per_s:
            return None
        return self.multiply_adds / self.time_s / self.peak_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """The costs of one kind of pass: `num_rows` rows after a text, or a whole prompt, summed over its passes.

    Args:
        pass_s: seconds of the pass in one call.
    """

    is_prompt: bool
    num_rows: int
    pass_s: float
    ops: Sequence[OpCost]

    @property
    def name(self) -> str:
        return f"prompt {self.num_rows}" if self.is_prompt else str(self.num_rows)

    @property
    def ops_s(self) -> float:
        return sum(op.time_s for op in self.ops)

    @property
    def left_s(self) -> float:
        """The time of the pass minus that of its ops: barriers, the call, and measurement errors."""
        return self.pass_s - self.ops_s

    @property
    def num_bytes(self) -> int:
        return sum(op.num_bytes for op in self.ops)

    def peak_s(self) -> float | None:
        """The time of all multiply-adds at peak speed; None if a peak is not known."""
        working = [op for op in self.ops if op.multiply_adds]
        if any(not op.peak_per_s for op in working):
            return None
        return sum(op.multiply_adds / op.peak_per_s for op in working if op.peak_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCosts:
    """All measurements of `forerun bench kernels`.

    Args:
        context: tokens before the rows of a pass that is not a prompt.
        read_bytes_per_s: read bandwidth of memory outside the caches.
        peaks_per_s: peak multiply-adds per second, by input kind; unknown ones are left out.
        repeats: how often each pass was measured.
        foreign_load: share of a core that other programs used, see `bench.run.machine`.
    """

    model: str
    dtype: str
    tier: str
    num_threads: int
    context: int
    read_bytes_per_s: float
    peaks_per_s: Mapping[str, float]
    repeats: int
    passes: Sequence[PassCosts]
    foreign_load: float
    machine: Mapping[str, str | int | float]

    def to_dict(self) -> dict[str, Any]:
        """All values and the shares, for JSON."""
        whole = asdict(self)
        for written, costs in zip(whole["passes"], self.passes, strict=True):
            written |= {"ops_s": costs.ops_s, "left_s": costs.left_s}
            for entry, op in zip(written["ops"], costs.ops, strict=True):
                entry |= {"read_share": op.read_share(self.read_bytes_per_s), "peak_share": op.peak_share}
        return whole
