"""Parallel against serial drafting on paced devices: SwiftSpec's own step times, the built-in pair's own acceptance.

python benchmarks/parallel_paced.py [--num-prompts 10] [--num-new 128] [--quick]

Everything is real but the length of a forward, which takes at least the stated time for its number of rows: processes,
sockets, trees, caches and text. Every number is *paced*. Each drafter runs over its own grid, all of them in turn
prompt by prompt in one run; the best of each grid is compared.
"""

import argparse
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from common import Run, answer_in_turn, policies_with, read_prompts, standard_arguments, write_results

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
from forerun.core.drafter_config import DrafterConfig, parallel_draft
from forerun.core.timing import Span
from forerun.drafting.policies import Policies

PAIRS = {  # SwiftSpec, arXiv 2506.11309, sections 4.2 and 4.5: milliseconds at 8 and 16 rows, and of a draft step
    "Qwen2-72B + 1.5B": "paced:target=10.48ms@8,13.37ms@16;draft=3.25ms",
    "Llama-3-70B + 3B": "paced:target=10.39ms@8,13.25ms@16;draft=1.9ms",
}
TARGET_S = {"Qwen2-72B + 1.5B": (0.01048, 0.01337), "Llama-3-70B + 3B": (0.01039, 0.01325)}


@dataclass(kw_only=True)
class PacedRun(Run):
    """With what rounds took beyond their work, and how long they waited."""

    paces_s: tuple[float, float]
    num_hits: int = 0
    overheads_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.name.split()[0]

    def write(self, prompt: str, params: SamplingParams) -> None:
        stream = self.engine.stream(prompt, params)
        stats = [step.stats for step in stream]
        self.results.append(stream.result())
        self.num_hits += sum(item.was_hit for item in stats)
        self.waits_s += [item.draft_s for item in stats]
        spans = [span for item in stats for span in item.spans]
        steps_s = [self.paces_s[item.num_verified > 8] for item in stats]
        self.overheads_s += overheads(spans, steps_s, is_serial=self.kind == "serial")


def overheads(spans: list[Span], steps_s: list[float], *, is_serial: bool) -> list[float]:
    """What every round took beyond its target step and the draft work done in it: the longer of them, or their sum."""
    targets = sorted((span for span in spans if span.lane == "target"), key=lambda span: span.start_s)
    drafts = [span for span in spans if span.lane == "draft"]
    found = []
    for (this, following), step_s in zip(pairwise(targets), steps_s, strict=False):
        work = sum(
            min(span.end_s, following.start_s) - max(span.start_s, this.start_s)
            for span in drafts
            if span.start_s < following.start_s and span.end_s > this.start_s
        )
        needed = step_s + work if is_serial else max(step_s, work)
        found.append(following.start_s - this.start_s - needed)
    return found


def grid(lookup: bool, quick: bool) -> dict[str, tuple[DrafterConfig, Policies]]:
    """Every drafter to try. Widths up to 8 are SwiftSpec's own; wider ones assume a draft step that costs no more."""
    usual = policies_with(lookup)
    usual = replace(usual, remote=replace(usual.remote, is_traced=True))

    def growing(num_rows: int, **tree: float) -> tuple[int, Policies]:
        return num_rows, replace(usual, tree=replace(usual.tree, **tree))

    found: dict[str, tuple[DrafterConfig, Policies]] = {}
    for depth, (num_rows, policies) in (
        (3, growing(8, min_mass=0.0)), (6, growing(8)), (6, growing(8, min_mass=0.5)), (6, growing(16)),
    ):  # fmt: skip
        tree = policies.tree
        found[f"serial {num_rows} rows, draft 8x{tree.num_children}, depth {depth}, min mass {tree.min_mass}"] = (
            DraftModel(adaptive=False, verify_width=num_rows, depth=depth, draft_width=8), policies,
        )  # fmt: skip
    late = replace(usual, remote=replace(usual.remote, max_lateness=0.6))
    for num_rows, policies in (growing(8), (8, late), growing(8, num_children=8), growing(16, num_children=6)):
        draft = replace(parallel_draft(), adaptive=False, verify_width=num_rows)
        shape = f"{num_rows} rows, draft {draft.draft_width}x{policies.tree.num_children}"
        found[f"parallel {shape}, overrun {policies.remote.max_lateness:g}"] = Parallel(draft=draft), policies
    if quick:
        names = list(found)
        return {name: found[name] for name in (names[1], names[4])}
    return found


def measure(pair: str, lookup: bool, temperature: float, arguments: argparse.Namespace) -> list[dict[str, object]]:
    runs = []
    for name, (config, policies) in {"none": (NoDrafter(), None), **grid(lookup, arguments.quick)}.items():
        engine = Engine(EngineConfig(drafter=config, device=PAIRS[pair], num_threads=1), policies=policies)
        runs.append(PacedRun(name=name, engine=engine, num_threads=1, paces_s=TARGET_S[pair]))
    params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1, ignore_eos=True)
    answer_in_turn(runs, read_prompts(arguments.num_prompts, arguments.skip), params)
    assert all(run.tokens_per_round > 1.0 for run in runs[1:]), "a drafter that is never right was not measured"
    return rows_of(pair, lookup, temperature, runs)


def rows_of(pair: str, lookup: bool, temperature: float, runs: list[PacedRun]) -> list[dict[str, object]]:
    best = {kind: max((run for run in runs if run.kind == kind), key=lambda run: run.tokens_per_s)
            for kind in ("serial", "parallel")}  # fmt: skip
    rows = []
    for run in runs:
        is_best = run in best.values()
        rows.append({
            "paced as": pair,
            "T": temperature,
            "lookup": "on" if lookup else "off",
            "drafter": f"**{run.name}**" if is_best else run.name,
            "tok/s": f"{run.tokens_per_s:.0f}",
            "over best serial": f"{run.tokens_per_s / best['serial'].tokens_per_s:.2f}",
            "tokens/round": f"{run.tokens_per_round:.2f}",
            "round ms": f"{1e3 * run.total('decode_s') / run.total('num_rounds'):.2f}",
            "wait ms, mean": f"{1e3 * sum(run.waits_s) / len(run.waits_s):.2f}",
            "beyond target and draft, median ms": f"{1e3 * median(run.overheads_s):.2f}",
            "hits": f"{run.num_hits / run.total('num_rounds'):.2f}" if run.kind == "parallel" else "",
            "texts as none": run.same_texts(runs[0]),
        })  # fmt: skip
    for row in rows:
        print(row, flush=True)
    return rows


def main() -> None:
    parser = standard_arguments(__doc__, "parallel_paced")
    parser.add_argument("--num-prompts", type=int, default=10)
    parser.add_argument("--skip", type=int, default=1, help="leave out so many prompts at the start")
    parser.add_argument("--num-new", type=int, default=128)
    parser.add_argument("--quick", action="store_true", help="one configuration each")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for pair in PAIRS:
        for lookup in (True, False):
            for temperature in (0.0, 1.0):
                rows += measure(pair, lookup, temperature, arguments)
    notes = [
        "All numbers are paced: a forward takes at least the time SwiftSpec's paper states for its rows; all else is "
        "real.",
        f"{arguments.num_prompts} held-out prompts x {arguments.num_new} tokens, decoding only, all drafters in turn "
        "prompt by prompt. Bold: the best of each grid. Target process 1 thread, drafter's process on another core.",
        "Beyond target and draft: from one target step's start to the next one's, less the longer of the stated target "
        "time and the draft work done meanwhile (serial: less their sum), in seconds of the drafter's own spans.",
    ]
    write_results(arguments, "Parallel and serial drafting, paced", rows, notes)


if __name__ == "__main__":
    main()
