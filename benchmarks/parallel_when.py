"""When parallel drafting is faster: its bound over the best serial tree, by T / D and the pair's agreement.

PYTHONPATH=. python benchmarks/parallel_when.py --trace "built-in=FILE" --trace "SmolLM2=FILE" [--plot FILE]

Left, pairs whose guesses `forerun bench trace` has recorded at one temperature, right, synthetic ones, as the planner
plays them through: T is the target's pass over up to 8 rows (1.28 T over 16), D a draft pass, nothing else takes time.
The best tree in turn: 8 rows and 1 to 8 levels, or adaptive widths of up to 16 rows. No model runs and no clock is
read: a projection, the same on every machine.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from common import standard_arguments, write_results
from matplotlib.figure import Figure

from forerun import DraftModel, Parallel
from forerun.core.pace import Pace
from forerun.engine.trace import AnswerTrace, read_traces
from forerun.planner.bound import bound_of
from forerun.planner.outcome import Outcome
from forerun.planner.simulate import Costs, simulate
from forerun.planner.synthetic import SyntheticPair

RATIOS: Final = (1.5, 2.0, 2.5, 3.2, 4.0, 5.5, 7.0, 10.0)
PASS_S: Final = 0.01
TARGET: Final = Pace(steps=((8, PASS_S), (16, 1.28 * PASS_S)))
EXPONENTS: Final = (0.1, 0.25, 0.5, 1.0, 2.0)
SERIAL: Final = (
    DraftModel(),
    *(DraftModel(verify_width=8, draft_width=8, depth=depth, adaptive=False) for depth in range(1, 9)),
)
PARALLEL: Final = (
    Parallel(draft=DraftModel(verify_width=8, draft_width=8, adaptive=False)),
    Parallel(draft=DraftModel()),
)


NOTES: Final = (
    "A projection: no model ran. tokens in T: tokens/s times the target's pass. Recorded: the draft's guesses along "
    "the target's own answers. Synthetic: places are independent of each other, which is harder on a drafter that "
    "guesses ahead than text of the same agreement is, since that has long easy stretches, and some of it looked up.",
)


def agreement(traces: Sequence[AnswerTrace]) -> float:
    """Share of the tokens that were the draft's first guess, given the noise."""
    hits = [
        children[0] == token_id if children else False
        for trace in traces
        for children, token_id in zip(trace.children, trace.token_ids, strict=True)
    ]
    return sum(hits) / len(hits)


def rows_of(name: str, traces: Sequence[AnswerTrace]) -> Iterator[dict[str, object]]:
    share = agreement(traces)
    for ratio in RATIOS:
        costs = Costs(target=TARGET, draft=Pace(steps=((1 << 20, PASS_S / ratio),)), wire_s=0.0)
        serial = max((simulate(traces, tree, costs) for tree in SERIAL), key=speed)
        bound = max((bound_of(traces, drafter, costs).outcome for drafter in PARALLEL), key=speed)
        row: dict[str, object] = {
            "pair": name,
            "agrees on": f"{share:.2f}",
            "T/D": f"{ratio:g}",
            "in turn, tokens in T": f"{PASS_S * speed(serial):.2f}",
            "parallel, tokens in T": f"{PASS_S * speed(bound):.2f}",
            "parallel over in turn": f"{speed(bound) / speed(serial):.2f}",
            "misses": f"{bound.miss_rate:.2f}",
            "passes lost": f"{bound.useless_expansions:.2f}",
        }
        print(row, flush=True)
        yield row


def speed(outcome: Outcome) -> float:
    return outcome.tokens_per_s


def plot(path: Path, recorded: Sequence[dict[str, object]], synthetic: Sequence[dict[str, object]]) -> None:
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    both = zip(figure.subplots(1, 2, sharey=True), ("recorded pairs", "synthetic pairs"), strict=True)
    for (axes, title), rows in zip(both, (recorded, synthetic), strict=True):
        for name in dict.fromkeys(str(row["pair"]) for row in rows):
            line = [row for row in rows if row["pair"] == name]
            label = f"{name}: agrees on {100 * float(str(line[0]['agrees on'])):.0f} %" if rows is recorded else name
            axes.plot(
                [float(str(row["T/D"])) for row in line],
                [float(str(row["parallel over in turn"])) for row in line],
                marker="o", markersize=3.5, label=label,
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
        axes.minorticks_off()
        axes.axhline(1.0, color="#8c8c8c", linewidth=0.8)
        axes.set_xlabel("T / D: draft passes in a pass of the target")
        axes.set_title(title, fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("parallel at its bound / best tree in turn")
    figure.savefig(path)


def main() -> None:
    parser = standard_arguments(__doc__ or "", "parallel_when")
    parser.set_defaults(hardware="projected")
    parser.add_argument("--trace", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--plot", type=Path)
    arguments: argparse.Namespace = parser.parse_args()
    recorded = [
        row
        for name, _, file in (spelled.partition("=") for spelled in arguments.trace)
        for row in rows_of(name, read_traces(Path(file)))
    ]
    pairs = [SyntheticPair(exponent=exponent, num_answers=8) for exponent in EXPONENTS]
    synthetic = [
        row
        for traces in (pair.traces() for pair in pairs)
        for row in rows_of(f"agrees on {100 * agreement(traces):.0f} %", traces)
    ]
    if arguments.plot is not None:
        plot(arguments.plot, recorded, synthetic)
    write_results(arguments, "When parallel drafting wins", [*recorded, *synthetic], NOTES)


if __name__ == "__main__":
    main()
