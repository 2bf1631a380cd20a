"""SwiftSpec's six pairs of models on eight GPUs, as the planner projects them: every split, and taking turns.

python -m forerun_lab.checks.planner_swiftspec [--pairs Llama-3-70B,Qwen2-72B]

Once with the times that were fitted to the paper's (machine 8xH800), once with the least that our kernels can take
there (8xH800-floor). No model runs and no clock is read: a projection, the same on every machine. The paper has an
acceptance length for one of its pairs, in serial drafting. All pairs are given it as it stands, as with `forerun plan
--accept-length 3.63`; its own pair also in the other reading that planner/swiftspec.py tells of. Nothing is fitted to a
published speed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from forerun_lab.checks.common import standard_arguments, write_results
from forerun_lab.planner.plan import Plan, search
from forerun_lab.planner.roofline import Machine, machine_named
from forerun_lab.planner.swiftspec import PAIRS, READINGS, UNITS, Pair, TableReading, profile_of
from forerun_lab.planner.synthetic import traces_for
from forerun_lab.planner.trace import AnswerTrace

MACHINES: Final = ("8xH800", "8xH800-floor")
ROWS: Final = 8


def row_of(pair: Pair, machine: Machine, reading: TableReading, traces: Sequence[AnswerTrace]) -> dict[str, object]:
    """The projected speed of every split, and what the published split needs to reach the published speed."""
    profile = profile_of(pair, machine, reading)
    plans = search(profile, traces, units=UNITS, has_bound=False)
    splits = {plan.split.target_units: plan for plan in plans if plan.kind == "parallel"}
    serial = next(plan for plan in plans if plan.kind == "serial")
    best = max(splits.values(), key=lambda plan: plan.outcome.tokens_per_s)
    theirs = splits[pair.target_units]
    draft_units = pair.draft_units
    return {
        "target": pair.target,
        "draft": pair.draft,
        "times of": machine.name,
        "accepted": f"{reading.accepted:.2f}",
        "pass ms": f"{1e3 * profile.target[pair.target_units].step_s(ROWS):.2f} + "
        f"{1e3 * profile.draft[draft_units].step_s(ROWS):.2f}",
        **{f"{units}+{UNITS - units}": speed(splits.get(units)) for units in range(UNITS - 1, 0, -1)},
        "in turn": speed(serial),
        "best": f"{best.split.name} ({' - '.join(f'{end:.0f}' for end in best.outcome.interval())})",
        "published": f"{pair.target_units}+{draft_units}: {pair.tokens_per_s:.0f}",
        "of it": f"{theirs.outcome.tokens_per_s / pair.tokens_per_s:.2f}",
        "needs per round": f"{pair.tokens_per_s * theirs.outcome.round_s:.2f}",
    }


def speed(plan: Plan | None) -> str:
    return "" if plan is None else f"{plan.outcome.tokens_per_s:.0f}"


def rows(names: Sequence[str]) -> Iterator[dict[str, object]]:
    traces = {reading: traces_for(reading.accepted) for reading in READINGS}
    for machine in map(machine_named, MACHINES):
        for pair in PAIRS:
            readings = READINGS if pair.serial_tokens_per_s is not None else READINGS[:1]
            for reading in readings if pair.target in names else ():
                print(f"{pair.target} on {machine.name}, {reading.accepted:.2f} accepted", file=sys.stderr, flush=True)
                yield row_of(pair, machine, reading, traces[reading])


NOTES: Final = (
    "tokens/s, PROJECTED: nobody has measured this. Times of the floor are the least there can be, so its speeds are "
    "the most. Weights of 4 bit, 512 tokens of context, nothing counted in a round but its passes; SwiftSpec's own "
    "rounds last 1.7 to 5.4 ms longer than their target's pass.",
    "accepted: tokens a serial round of 8 rows and 5 levels without the bonus token, of synthetic pairs. Table 7 has "
    "3.63 for Qwen2-72B with 1.5B in turn, the only length published, without (3.63) or with (2.63) the bonus token; "
    "in the second case a draft time there is taken for that of two expansions. The other pairs are given the first, "
    "for want of theirs.",
    "pass ms: of 8 rows, target and draft, in the published split. In turn: both on eight GPUs, or the draft on "
    "fewer. best: of the parallel splits, with the interval that other answers of this kind would lie in. of it: "
    "projected over published speed in the published split. needs per round: tokens that a round of the projected "
    "length must bring for the published speed.",
)


def main() -> None:
    parser = standard_arguments(__doc__ or "", "planner_swiftspec")
    parser.set_defaults(hardware="8gpus")
    parser.add_argument("--pairs", default=",".join(pair.target for pair in PAIRS), help="their targets, with commas")
    arguments: argparse.Namespace = parser.parse_args()
    title = "SwiftSpec's table, as the planner projects it"
    write_results(arguments, title, list(rows(arguments.pairs.split(","))), NOTES)


if __name__ == "__main__":
    main()
