"""Serial and parallel drafting, adaptive and with fixed widths: at this machine's own speed and on paced devices.

python benchmarks/widths.py [--num-prompts 8] [--only cpu] [--quick] [--target smollm2 --draft FOLDER]

On a paced device everything is real but the length of a forward, which takes at least the stated time for its number of
rows: processes, sockets, trees, caches and text. All drafters of a place answer in turn, prompt by prompt. The best
fixed shape is chosen with hindsight, on the very prompts it is compared on, so the comparison favours it.
"""

import argparse
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Any

from common import Prompt, Run, answer_in_turn, ask, config_of, policies_with, standard_arguments, write_results

from forerun import DraftModel, Engine, NoDrafter, Parallel, SamplingParams
from forerun.core.drafter_config import DrafterConfig
from forerun.core.timing import Span
from forerun.drafting.policies import Policies

PAIRS = {  # SwiftSpec, arXiv 2506.11309, sections 4.2 and 4.5: milliseconds at 8 and 16 rows, and of a draft step
    "Qwen2-72B + 1.5B": "paced:target=10.48ms@8,13.37ms@16;draft=3.25ms",
    "Llama-3-70B + 3B": "paced:target=10.39ms@8,13.25ms@16;draft=1.9ms",
}
TARGET_S = {"Qwen2-72B + 1.5B": (0.01048, 0.01337), "Llama-3-70B + 3B": (0.01039, 0.01325)}
FIXED = DraftModel(adaptive=False, verify_width=8, draft_width=8, depth=6)
AHEAD = DraftModel(adaptive=False, verify_width=8)
# Every shape to try, with what it changes in the tree's policy. Widths up to 8 are SwiftSpec's own; wider ones assume a
# draft step that costs no more.
SERIAL: dict[str, tuple[DraftModel, dict[str, Any]]] = {
    "adaptive": (DraftModel(), {}),
    "4 rows, depth 3": (replace(FIXED, verify_width=4, depth=3), {}),
    "8 rows": (FIXED, {}),
    "8 rows, min mass 0.5": (FIXED, {"min_mass": 0.5}),
    "16 rows": (replace(FIXED, verify_width=16), {}),
}
PARALLEL: dict[str, tuple[DraftModel, dict[str, Any]]] = {
    "adaptive": (DraftModel(), {}),
    "4 rows": (replace(AHEAD, verify_width=4), {}),
    "8 rows": (AHEAD, {}),
    "16 rows": (replace(AHEAD, verify_width=16), {}),
}


@dataclass(kw_only=True)
class ShapedRun(Run):
    """A run that also records the overheads of rounds on a paced device, and their waits."""

    kind: str
    paces_s: tuple[float, float] | None
    num_hits: int = 0
    overheads_s: list[float] = field(default_factory=list)

    def write(self, prompt: Prompt, params: SamplingParams) -> None:
        stream = self.start(prompt, params)
        stats = [step.stats for step in stream]
        self.results.append(stream.result())
        self.num_hits += sum(item.was_hit for item in stats)
        if self.paces_s is not None:
            spans = [span for item in stats for span in item.spans]
            steps_s = [self.paces_s[item.num_verified > 8] for item in stats]
            self.overheads_s += overheads(spans, steps_s, is_serial=self.kind == "serial")


def overheads(spans: list[Span], steps_s: list[float], *, is_serial: bool) -> list[float]:
    """Each round's time beyond its target step and draft work: beyond the longer of them, or if serial, their sum."""
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


Choice = tuple[str, str, DrafterConfig, Policies]  # kind, name, drafter and policies


def drafters_to_try(lookup: bool, model: str, *, is_quick: bool) -> list[Choice]:
    usual = policies_with(lookup)
    usual = replace(usual, remote=replace(usual.remote, is_traced=True))
    found: list[Choice] = [("none", "", NoDrafter(), usual)]
    for kind, shapes in (("serial", SERIAL), ("parallel", PARALLEL)):
        for name, (draft, tree) in shapes.items():
            if not is_quick or name in ("adaptive", "8 rows"):
                own = replace(draft, model=model)
                drafter = own if kind == "serial" else Parallel(draft=own)
                found.append((kind, name, drafter, replace(usual, tree=replace(usual.tree, **tree))))
    return found


def measure(place: str, lookup: bool, temperature: float, arguments: argparse.Namespace) -> list[dict[str, object]]:
    is_paced = place in PAIRS
    chosen = drafters_to_try(lookup, arguments.draft, is_quick=arguments.quick)
    runs = [
        ShapedRun(
            name=name, kind=kind, num_threads=num_threads, paces_s=TARGET_S.get(place),
            engine=Engine(
                config_of(arguments, device=PAIRS.get(place, "cpu"), num_threads=num_threads, drafter=drafter),
                policies=policies,
            ),
        )
        for kind, name, drafter, policies in chosen
        for num_threads in [1 if is_paced else arguments.threads - (kind == "parallel")]
    ]  # fmt: skip
    params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1)
    prompts = [ids for _, ids in ask(arguments, arguments.num_prompts, arguments.skip)]
    for run in runs:
        run.engine.generate(prompts[0][:40], params)  # warm-up
    answer_in_turn(runs, prompts, params)
    circumstances = {"on": place, "T": temperature, "lookup": "on" if lookup else "off"}
    rows = [circumstances | row_of(run, runs) for run in runs]
    for row in rows:
        print(row, flush=True)
    return rows


def best_fixed(runs: list[ShapedRun], kind: str) -> ShapedRun:
    group = [run for run in runs if run.kind == kind and run.name != "adaptive"]
    return max(group, key=lambda run: run.tokens_per_s)


def bound(runs: list[ShapedRun]) -> float:
    """Best tokens/s of a serial drafter if its rounds took only the target's pass."""
    return max(
        run.tokens_per_round / run.paces_s[run.total("num_drafted") / run.total("num_rounds") > 7]
        for run in runs if run.paces_s is not None and run.kind == "serial"
    )  # fmt: skip


def row_of(run: ShapedRun, runs: list[ShapedRun]) -> dict[str, object]:
    num_rounds, none = run.total("num_rounds"), runs[0]
    best, serial = best_fixed(runs, run.kind), best_fixed(runs, "serial")
    return {
        "drafter": run.kind,
        "widths": f"**{run.name}**" if run is best and run.name else run.name,
        "tok/s": f"{run.tokens_per_s:.0f}",
        "over `none`": f"{run.tokens_per_s / none.tokens_per_s:.2f}",
        "over best fixed": f"{run.tokens_per_s / best.tokens_per_s:.3f}",
        "over best serial": f"{run.tokens_per_s / serial.tokens_per_s:.2f}",
        "over bound": f"{run.tokens_per_s / bound(runs):.2f}" if run.kind == "parallel" and run.paces_s else "",
        "tokens/round": f"{run.tokens_per_round:.2f}",
        "rows/round": f"{(run.total('num_drafted') + num_rounds) / num_rounds:.1f}",
        "round ms": f"{1e3 * run.total('decode_s') / num_rounds:.2f}",
        "wait ms, mean": f"{1e3 * run.total('draft_s') / num_rounds:.2f}",
        "beyond target and draft, median ms": f"{1e3 * median(run.overheads_s):.2f}" if run.overheads_s else "",
        "hits": f"{run.num_hits / num_rounds:.2f}" if run.kind == "parallel" else "",
        "texts as none": run.same_texts(none),
    }


def main() -> None:
    parser = standard_arguments(__doc__, "widths", num_prompts=8, num_new=128)
    parser.add_argument("--skip", type=int, default=1, help="leave out so many prompts at the start")
    parser.add_argument("--only", choices=["cpu", *PAIRS], help="one of the places")
    parser.add_argument("--quick", action="store_true", help="two shapes each")
    parser.add_argument("--lookup", type=int, nargs="+", default=[1, 0], help="1 with earlier text in trees, 0 without")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for place in ("cpu", *PAIRS):
        if arguments.only in (None, place):
            for lookup in arguments.lookup:
                for temperature in arguments.temperatures:
                    rows += measure(place, bool(lookup), temperature, arguments)
    notes = [
        f"{arguments.num_prompts} questions of each set x {arguments.num_new} tokens at most, decoding only, all in "
        "turn prompt by prompt. Bold: the best fixed shape of each kind, with hindsight.",
        "Paced: a forward takes at least the time SwiftSpec's paper states for its rows, all else is real; target "
        "process 1 thread, drafter's process on another core.",
        "Bound: tokens per round of a serial drafter over the target's pass alone, as if all draft passes were hidden.",
        "Beyond target and draft: from one target step's start to the next one's, less the longer of the stated target "
        "time and the draft work done meanwhile (serial: less their sum), in seconds of the drafter's own spans.",
    ]
    write_results(arguments, "Serial and parallel drafting, by widths", rows, notes)


if __name__ == "__main__":
    main()
