"""The results as Markdown: a table for each section, and a short summary."""

from collections.abc import Mapping, Sequence

from forerun_lab.checks.gpu.cases import Outcome, Row

MOST_CELLS = 60  # characters
FLOOR_NOTE = (
    "Floors and shares are computed: bytes that cannot be avoided over the measured copy rate (bytes read plus bytes "
    "written per second). Everything else is measured."
)
REHEARSAL_NOTE = "**A rehearsal on a CPU in Triton's interpreter, with tiny shapes. Its times mean nothing.**"
# What no rehearsal can tell, and which sections of the check tell it on a GPU.
ONLY_A_GPU = (
    ("how long kernels, passes and rounds take, and their share of the memory's bandwidth", "kernels, passes, rounds"),
    ("how long the device idles between kernels, and what early requests for weights save", "passes"),
    ("what a part of a round more costs, as every draft pass is a graph launch of its own", "rounds"),
    ("whether a row's bits are its own: matrix instructions for 16 and for 32 rows, of every dtype", "bits, suite"),
    ("whether memory is ordered as kernels expect: counters of splits, loads past a cache", "bits, suite"),
    ("whether recorded graphs do what ordinary runs did, for two engines in one process too", "suite, faults"),
    ("how long opening takes: compilers, ordinary runs, recording; and the memory that graphs take", "passes, rounds"),
    ("whether a kernel's registers and shared memory are had at launch, not only at compilation", "kernels, passes"),
    ("what CUDA and the allocator take besides the storages that are counted", "passes, faults"),
    ("whether a device without memory is usable after a failed opening", "faults"),
    ("whether GPUs reach each other's memory, and what sums over ranks cost", "ranks, suite"),
    ("which tiles and numbers of splits are best", "sweep"),
    ("how transformers and torch's kernels compare", "peers"),
)  # fmt: skip


def render(title: str, facts: Mapping[str, object], outcomes: Mapping[str, Outcome], *, is_rehearsal: bool) -> str:
    lines = [f"# {title}", ""]
    lines += [REHEARSAL_NOTE, ""] if is_rehearsal else []
    lines += [", ".join(f"{name} {value}" for name, value in facts.items()), "", FLOOR_NOTE, ""]
    lines += ["## Summary", "", *summary(outcomes), ""]
    lines += ["## What only a GPU can tell", "", *left_to_a_gpu(outcomes), ""] if is_rehearsal else []
    for name, outcome in outcomes.items():
        lines += [f"## {name}", ""]
        rows = joined(outcome.rows) if name == "kernels" else outcome.rows
        lines += table([{key: value for key, value in row.items() if key not in HIDDEN} for row in rows])
        lines += [""] if rows else []
        lines += [f"* skipped {entry['case']}: {entry['reason']}" for entry in outcome.skipped]
        lines += [f"* no time was left for {case}" for case in outcome.left_out]
        for entry in outcome.failures:
            lines += [f"* failed: {entry['case']}", "", "```", str(entry["traceback"]).rstrip(), "```", ""]
        lines += [""]
    return "\n".join(lines)


def left_to_a_gpu(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What no rehearsal can tell, with the tests that the section `suite` has collected."""
    tests = outcomes["suite"].rows if "suite" in outcomes else []
    lines = [f"* {what}: `scripts/gpu_check --only {told_by.replace(',', '')}`" for what, told_by in ONLY_A_GPU]
    return [*lines, *(f"* tests that need a GPU in {row['file']}: {row['tests']}" for row in tests if "file" in row)]


HIDDEN = ("case", "us_low", "us_high", "ms_low", "ms_high", "by_place", "floor_bytes")


def joined(rows: Sequence[Row]) -> list[Row]:
    """Times and errors of the same kernel in one row."""
    merged: dict[tuple[object, ...], Row] = {}
    for row in sorted(rows, key=lambda row: "error" in row):
        merged.setdefault((row["model"], row["kernel"], row["rows"]), {}).update(row)
    return list(merged.values())


def table(rows: Sequence[Row]) -> list[str]:
    header = list(dict.fromkeys(name for row in rows for name in row))
    if not header:
        return []
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(cell(row.get(name)) for name in header) + " |" for row in rows]


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.4e}"
    return str(value).replace("|", "\\|").replace("\n", " ")[:MOST_CELLS]


def summary(outcomes: Mapping[str, Outcome]) -> list[str]:
    """A few lines for every section: what matters most of it, and what went wrong."""
    lines = []
    for name, outcome in outcomes.items():
        counts = f"{len(outcome.rows)} rows, {len(outcome.failures)} failed, {len(outcome.left_out)} left out"
        lines.append(f"* **{name}** ({outcome.seconds:.0f} s): {counts}")
        try:
            lines += [f"  * {line}" for line in HEADLINES.get(name, lambda rows: [])(outcome.rows)]
        except (KeyError, TypeError, ValueError, IndexError) as fault:  # rows of a run that was cut short
            lines.append(f"  * no headline: {fault!r}")
        lines += [f"  * failed: {entry['case']}: {last_line(entry)}" for entry in outcome.failures[:8]]
        lines += [f"  * skipped: {entry['case']}: {entry['reason']}" for entry in outcome.skipped[:3]]
    return lines


def last_line(entry: Row) -> str:
    lines = str(entry["traceback"]).strip().splitlines() or [""]
    return lines[-1][:200]


def machine_lines(rows: Sequence[Row]) -> list[str]:
    facts = {str(row["what"]): row["value"] for row in rows}
    names = ("gpu", "gpu_driver", "torch", "triton", "commit")
    lines = [", ".join(str(facts[name]) for name in names if name in facts)]
    if "copy_bytes_per_s" in facts:
        lines.append(f"copy {number(facts['copy_bytes_per_s']) / 1e12:.3f} TB/s")
    if "matmul_per_s" in facts:
        lines[-1] += f", bf16 {number(facts['matmul_per_s']) / 1e12:.0f} TFLOP/s"
    return lines


def suite_lines(rows: Sequence[Row]) -> list[str]:
    names = ("status", "passed", "failed", "error")
    return [", ".join(f"{name} {row.get(name)}" for name in names) for row in rows if "status" in row]


def round_lines(rows: Sequence[Row]) -> list[str]:
    """Speeds of the built-in pair; rounds of large shapes, and what they would write with its acceptance."""
    own = [row for row in rows if "tokens_per_s" in row]
    plain = {row["temperature"]: row["text"] for row in own if row["drafter"] == "none"}
    lines = [
        f"built-in pair, {row['drafter']}, temperature {row['temperature']}: "
        f"{number(row['tokens_per_s']):.0f} tokens/s, {number(row['tokens_per_round']):.2f} a round, "
        + ("the text of none" if row["text"] == plain.get(row["temperature"]) else "ANOTHER TEXT THAN NONE")
        for row in own
    ]
    gains = {row["drafter"]: number(row["tokens_per_round"]) for row in own if row["temperature"] == 0.0}
    for row in (row for row in rows if "round_ms" in row):
        widths = f"{row['verify_width']}/{row['draft_width']}/{row['depth']}"
        round_ms = number(row["round_ms"])
        gain = gains.get(f"draft_model {widths}")
        layers_ms = number(row["verify_layers_ms"]) + number(row["depth"]) * number(row["draft_layers_ms"])
        speed = "" if gain is None else f"{1e3 * gain / round_ms:.0f} tokens/s"
        projected = f"; PROJECTED with the built-in pair's acceptance: {speed}" if speed else ""
        lines.append(
            f"{row['target']} with {row['draft']} {widths}: round {round_ms:.3f} ms, its layers {layers_ms:.3f} ms, "
            f"heads and bookkeeping {1e3 * (round_ms - layers_ms):.0f} us, "
            f"launch {number(row['launch_us']):.0f} us{projected}"
        )
    return lines


def bit_lines(rows: Sequence[Row]) -> list[str]:
    sums = [sum(int(number(row[name])) for row in rows) for name in ("checks", "different_rows", "different_bits")]
    return [f"{sums[0]} rows checked, {sums[1]} differ, in {sums[2]} bits"]


def number(value: object) -> float:
    return float(str(value))


HEADLINES = {
    "machine": machine_lines,
    "suite": suite_lines,
    "rounds": round_lines,
    "bits": bit_lines,
}
