"""Serial and parallel drafting on paced devices, as predicted by the planner, with the bound, and as measured.

python benchmarks/planner_paced.py [--target smollm2 --draft FOLDER --data mt_bench,gsm8k] [--measure]

A trace of the pair is recorded, greedy and at temperature 1, and the planner searches the best trees for the times of
SwiftSpec's two pairs of models. Alone, it knows these times and nothing beside them, and no clock is read. With
--measure it is also told what rounds and expansions of this machine take beside their passes, and its plans are
carried out. Every number is *paced*.
"""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from common import ask, config_of, policies_with, standard_arguments, write_results
from widths import PAIRS

from forerun import DraftModel, Engine, NoDrafter, Parallel, SamplingParams
from forerun.bench.run.draft_traces import Recorder
from forerun.core.pace import read_device
from forerun.engine.calibrate import calibrate
from forerun.engine.profile import Profile
from forerun.engine.trace import AnswerTrace
from forerun.planner.plan import Plan, search, speed_of
from forerun.planner.simulate import Costs, simulate

BARE = Profile(source="paced", unit="device", target={1: read_device("paced:target=1ms").target})


def paced(pair: str, known: Profile) -> Profile:
    """Two devices of these paces, with the overheads of a profile."""
    placement = read_device(PAIRS[pair])
    return replace(
        known, source="paced", unit="device", target=dict.fromkeys((1, 2), placement.target),
        draft=dict.fromkeys((1, 2), placement.draft),
    )  # fmt: skip


def chosen(plans: Sequence[Plan]) -> dict[str, Plan]:
    """The best of each kind; plans come fastest first."""
    found: dict[str, Plan] = {}
    for plan in plans:
        kind = f"{plan.kind}, adaptive" if plan.kind == "serial" and plan.tree and plan.tree.adaptive else plan.kind
        found.setdefault(kind, plan)
    return found


def bounds(profile: Profile, traces: Sequence[AnswerTrace], lookup: bool) -> dict[int, float]:
    """Tokens per round, by rows of the tree, of a draft with unlimited time before every round."""
    costs = Costs.of(profile, target_units=1, draft_units=1)
    free = {rows: DraftModel(adaptive=False, verify_width=rows, draft_width=32, depth=12) for rows in (4, 8, 16)}
    usual = policies_with(lookup)
    deep = replace(usual, tree=replace(usual.tree, min_mass=0.0))
    return {rows: simulate(traces, drafter, costs, deep).tokens_per_round for rows, drafter in free.items()}


def measured(plan: Plan, pair: str, traces: Sequence[AnswerTrace], lookup: bool, arguments: argparse.Namespace) -> str:
    """Measured tokens/s of the plan on the prompts of these traces."""
    assert plan.tree is not None, "a drafter with a tree"
    tree = replace(plan.tree, model=arguments.draft)
    config = config_of(
        arguments, drafter=Parallel(draft=tree) if plan.kind == "parallel" else tree, device=PAIRS[pair], num_threads=1
    )
    with Engine(config, policies=policies_with(lookup)) as engine:
        params = SamplingParams(max_new_tokens=arguments.num_new, temperature=traces[0].temperature, seed=1)
        stats = [engine.generate(list(trace.prompt_ids), params).stats for trace in traces]
    return f"{sum(item.num_new_tokens for item in stats) / sum(item.decode_s for item in stats):.0f}"


def rows_of(
    pair: str, profile: Profile, traces: Sequence[AnswerTrace], lookup: bool, arguments: argparse.Namespace
) -> Iterator[dict[str, object]]:
    best = chosen(search(profile, traces, lookup=lookup))
    serial = [plan for plan in best.values() if plan.kind == "serial"]
    fastest = max(serial, key=speed_of)
    found = bounds(profile, traces, lookup)
    rows = max(found, key=lambda rows: found[rows] / profile.target[1].step_s(rows))
    pass_s = profile.target[1].step_s(rows)
    for kind, plan in best.items():
        if plan.tree is None:
            continue
        outcome, is_parallel = plan.outcome, plan.kind == "parallel"
        low, high = outcome.interval()
        row: dict[str, object] = {
            "paced as": pair, "T": traces[0].temperature, "lookup": "on" if lookup else "off", "drafter": kind,
            "rows, width, depth": f"{plan.tree.verify_width}, {plan.tree.draft_width}"
            + ("" if is_parallel else f", {plan.tree.depth}"),
            "tokens/s": f"{outcome.tokens_per_s:.0f}", "95 %": f"{low:.0f}-{high:.0f}",
            "over best serial": f"{speed_of(plan) / speed_of(fastest):.2f}",
            "bound over best serial": f"{found[rows] / pass_s / speed_of(fastest):.2f}" if is_parallel else "",
            "tokens/round": f"{outcome.tokens_per_round:.2f}", "round ms": f"{1e3 * outcome.round_s:.2f}",
            "lost in tokens": f"{1 - outcome.tokens_per_round / found[rows]:.0%}"
            if is_parallel else "",
            "lost in time": f"{1 - pass_s / outcome.round_s:.0%}" if is_parallel else "",
        }  # fmt: skip
        yield row | ({"measured": measured(plan, pair, traces, lookup, arguments)} if arguments.measure else {})


def main() -> None:
    parser = standard_arguments(__doc__, "planner_paced", num_prompts=7, num_new=128)
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    prompts = [ids for _, ids in ask(arguments, arguments.num_prompts)]
    config = config_of(arguments, drafter=NoDrafter())
    known = calibrate(config, arguments.draft, print) if arguments.measure else BARE
    rows: list[dict[str, object]] = []
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1)
        with closing(Recorder(config, arguments.draft)) as recorder:
            traces = list(recorder.record(prompts, params))
        for pair in PAIRS:
            for lookup in (False, True):
                for row in rows_of(pair, paced(pair, known), traces, lookup, arguments):
                    rows.append(row)
                    print(row, flush=True)
    notes = [
        f"{len(prompts)} questions x {arguments.num_new} tokens at most, decoding only. The interval is that of other "
        "answers of this kind, by bootstrap.",
        "Bound: tokens per round of a draft that has all the time before every round (12 levels of 32 nodes, the best "
        "4, 8 or 16 verified), over the target's pass alone. Lost: what parallel drafting has less in tokens per "
        "round, and the share of its rounds beyond that pass.",
    ]
    write_results(arguments, "The planner's predictions, paced", rows, notes)


if __name__ == "__main__":
    main()
