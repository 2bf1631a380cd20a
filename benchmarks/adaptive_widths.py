"""Widths chosen each round against fixed ones: the built-in pair at this machine's own speed and on paced devices.

python benchmarks/adaptive_widths.py [--num-prompts 8] [--num-new 128] [--device cpu]

Every drafter runs over its own grid, all in turn prompt by prompt in one run. The best fixed setting is chosen with
hindsight, on the very prompts it is compared on, so the comparison favours it.
"""

import argparse
from dataclasses import replace

from common import Run, answer_in_turn, policies_with, read_prompts, standard_arguments, write_results
from parallel_paced import PAIRS

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
from forerun.core.drafter_config import DrafterConfig, parallel_draft

FIXED = DraftModel(adaptive=False, verify_width=8, draft_width=4, depth=6)
SERIAL: dict[str, DraftModel] = {
    "adaptive": DraftModel(),
    "8 rows": FIXED,
    "8 rows, draft 8": replace(FIXED, draft_width=8, depth=8),
    "16 rows, draft 8": replace(FIXED, verify_width=16, draft_width=8, depth=8),
    "4 rows, depth 3": replace(FIXED, verify_width=4, depth=3),
}
PARALLEL: dict[str, DraftModel] = {
    "adaptive": parallel_draft(),
    "8 rows": replace(parallel_draft(), adaptive=False, verify_width=8),
    "16 rows": replace(parallel_draft(), adaptive=False),
    "4 rows": replace(parallel_draft(), adaptive=False, verify_width=4),
}


def drafters_to_try(*, has_parallel: bool) -> dict[str, DrafterConfig]:
    found: dict[str, DrafterConfig] = {"none": NoDrafter()}
    found |= {f"serial, {name}": config for name, config in SERIAL.items()}
    if has_parallel:
        found |= {f"parallel, {name}": Parallel(draft=draft) for name, draft in PARALLEL.items()}
    return found


def measure(place: str, device: str, lookup: bool, temperature: float, arguments: argparse.Namespace) -> list[Run]:
    is_paced = device != "cpu"
    num_threads = 1 if is_paced else arguments.threads
    config = EngineConfig(device=device, num_threads=num_threads)
    runs = [
        Run(
            name=name,
            engine=Engine(replace(config, drafter=drafter), policies=policies_with(lookup)),
            num_threads=num_threads,
        )
        for name, drafter in drafters_to_try(has_parallel=is_paced).items()
    ]
    params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1, ignore_eos=True)
    prompts = read_prompts(arguments.num_prompts, skip=1)
    for run in runs:
        run.engine.generate(prompts[0][:40], params)  # warm-up
    answer_in_turn(runs, prompts, params)
    return runs


def rows_of(place: str, lookup: bool, temperature: float, runs: list[Run]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for kind in dict.fromkeys(run.name.partition(", ")[0] for run in runs[1:]):
        group = [run for run in runs if run.name.startswith(kind)]
        best = max((run for run in group if "adaptive" not in run.name), key=lambda run: run.tokens_per_s)
        rows += [row_of(place, lookup, temperature, run, best, runs[0]) for run in group]
    for row in rows:
        print(row, flush=True)
    return rows


def row_of(place: str, lookup: bool, temperature: float, run: Run, best: Run, none: Run) -> dict[str, object]:
    kind, _, widths = run.name.partition(", ")
    num_rounds = run.total("num_rounds")
    return {
        "on": place,
        "T": temperature,
        "lookup": "on" if lookup else "off",
        "drafter": kind,
        "widths": f"**{widths}**" if run is best else widths,
        "tok/s": f"{run.tokens_per_s:.0f}",
        "over `none`": f"{run.tokens_per_s / none.tokens_per_s:.2f}",
        "over best fixed": f"{run.tokens_per_s / best.tokens_per_s:.3f}",
        "tokens/round": f"{run.tokens_per_round:.2f}",
        "rows/round": f"{(run.total('num_drafted') + num_rounds) / num_rounds:.1f}",
        "texts as none": run.same_texts(none),
    }


def main() -> None:
    parser = standard_arguments(__doc__, "adaptive_widths")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--num-new", type=int, default=128)
    parser.add_argument("--only", choices=["cpu", *PAIRS], help="one of the places")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for place, device in {"cpu": "cpu", **PAIRS}.items():
        if arguments.only in (None, place):
            for lookup in (True, False):
                for temperature in (0.0, 1.0):
                    rows += rows_of(place, lookup, temperature, measure(place, device, lookup, temperature, arguments))
    notes = [
        f"{arguments.num_prompts} held-out prompts x {arguments.num_new} tokens, decoding only, all drafters in turn "
        "prompt by prompt. Bold: the best fixed setting of each group, with hindsight. Paced: a pass takes at least "
        "what SwiftSpec's paper states for its rows, target on 1 thread.",
    ]
    write_results(arguments, "Adaptive against fixed widths", rows, notes)


if __name__ == "__main__":
    main()
