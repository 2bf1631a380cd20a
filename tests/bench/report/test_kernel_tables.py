"""The tables of measured kernels."""

from dataclasses import replace

from forerun_lab.bench.records.kernel_costs import KernelCosts, OpCost, PassCosts
from forerun_lab.bench.report.columns import UNKNOWN
from forerun_lab.bench.report.kernel_tables import about, tables

QKV = OpCost(
    name="norm + qkv",
    weights="Q4_1",
    num_ops=2,
    num_bytes=10_000_000,
    multiply_adds=20_000_000,
    time_s=2e-3,
    peak_per_s=1e11,
)
HEAD = replace(QKV, name="norm + head", weights="Q8_0", num_ops=1, num_bytes=40_000_000, time_s=4e-3)
EMBED = OpCost(name="embed", weights="", num_ops=1, num_bytes=0, multiply_adds=0, time_s=1e-4, peak_per_s=1e11)
COSTS = KernelCosts(
    model="some-model",
    dtype="Q4_1 (bfloat16)",
    tier="avx2",
    num_threads=2,
    context=64,
    read_bytes_per_s=1e10,
    peaks_per_s={"float32": 5e10, "int16": 1e11},
    repeats=3,
    passes=[
        PassCosts(is_prompt=False, num_rows=1, pass_s=8e-3, ops=[EMBED, QKV, HEAD]),
        PassCosts(is_prompt=True, num_rows=128, pass_s=0.5, ops=[EMBED, replace(QKV, time_s=0.45)]),
    ],
    foreign_load=0.0,
    machine={"cpu": "A CPU", "last_level_cache_bytes": 1 << 20},
)


def test_times_add_up_to_the_pass() -> None:
    times, _, _ = tables(COSTS)
    assert times.heads == ["op", "weights", "MB", "1 row", "prompt 128"]
    assert times.lines == [
        ["embed", "", UNKNOWN, "0.10", "0.10"],
        ["norm + qkv", "Q4_1", "10.0", "2.00", "450"],
        ["norm + head", "Q8_0", "40.0", "4.00", UNKNOWN],
        ["left over", "", "", "1.90", "49.9"],
        ["pass", "", "50.0", "8.00", "500"],
        ["pass over that of one row", "", "", "1.00", UNKNOWN],
    ]


def test_shares_are_of_what_the_machine_can_do() -> None:
    _, read, peak = tables(COSTS)
    assert read.lines == [
        ["norm + qkv", "Q4_1", "50 %", "0 %"],
        ["norm + head", "Q8_0", "100 %", UNKNOWN],
        ["pass", "", "62 %", "0 %"],
    ]
    assert peak.lines[:2] == [["norm + qkv", "Q4_1", "10 %", "0 %"], ["norm + head", "Q8_0", "5 %", UNKNOWN]]
    assert peak.lines[-1] == ["pass", "", "5 %", "0 %"]


def test_what_casts_doubt_on_the_numbers_is_said() -> None:
    plain = "\n".join(about(COSTS))
    assert "kernels avx2, 2 threads of A CPU" in plain
    assert "memory is read at 10.0 GB/s" in plain
    assert "float32 50, int16 100" in plain
    assert "can exceed" not in plain
    assert "other programs" not in plain
    cached = replace(COSTS, machine={**COSTS.machine, "last_level_cache_bytes": 1 << 30}, foreign_load=0.5)
    assert "can exceed 100 %" in "\n".join(about(cached))
    assert "other programs took 50% of a core" in "\n".join(about(cached))
    unknown = replace(COSTS, passes=[replace(COSTS.passes[0], ops=[replace(QKV, peak_per_s=None)])], peaks_per_s={})
    assert [table.title for table in tables(unknown)] == ["milliseconds", "share of the memory's reading speed"]
    assert "is known only for x86" in "\n".join(about(replace(COSTS, peaks_per_s={})))


def test_json_has_the_shares() -> None:
    written = COSTS.to_dict()
    qkv = written["passes"][0]["ops"][1]
    assert (qkv["read_share"], qkv["peak_share"]) == (0.5, 0.1)
    assert written["passes"][0]["left_s"] == COSTS.passes[0].left_s
    assert written["passes"][0]["ops"][0]["read_share"] is None
