"""The bound in forerun plan and bench report: how close parallel drafting comes to it, and the causes of the loss."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forerun.core.errors import ConfigError

if TYPE_CHECKING:
    from forerun_lab.planner.bound import Bound
    from forerun_lab.planner.outcome import Outcome
    from forerun_lab.planner.plan import Plan

WIDTH: Final = 100  # columns; the table is narrower


def show_bound(plans: "Sequence[Plan]") -> None:
    """Print the bound of each plan that has one."""
    for plan, bound in ((plan, plan.bound) for plan in plans if plan.bound is not None):
        most = bound.outcome
        rows = []
        for name, outcome in ((f"{plan.kind} {plan.split.name}", plan.outcome), ("its bound", most)):
            *times_s, late, rows_lost, passes_lost = parts(outcome).values()
            milliseconds = [f"{1e3 * time_s:.2f}" for time_s in times_s]
            shares = [f"{late:.2f}", f"{rows_lost:.1f}", f"{passes_lost:.2f}"]
            rows.append([name, f"{outcome.tokens_per_s:.0f}", *milliseconds, *shares])
        lost = ", ".join(f"{name} {speed:.0f}" for name, speed in bound.lost_to.items())
        print(f"\n{plan.outcome.tokens_per_s / most.tokens_per_s:.2f} of the bound; tokens/s lost to {lost}\n")
        print_table(["a round, ms", "tokens/s", *parts(most)], rows)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with the first column aligned left and all others right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=WIDTH, highlight=False).print(table)


def bound_entry(plan: "Plan", bound: "Bound") -> dict[str, Any]:
    """The same for JSON; seconds where the table has milliseconds."""
    return {
        "tokens_per_s": bound.outcome.tokens_per_s,
        "tokens_per_round": bound.outcome.tokens_per_round,
        "lost_to": dict(bound.lost_to),
        "parts": parts(plan.outcome),
        "parts_at_bound": parts(bound.outcome),
    }


def show_reached(path: Path, speeds: Mapping[float, float]) -> None:
    """Print how close measured speeds come to the bound of a plan.

    Args:
        path: the file that `forerun plan --json` wrote.
        speeds: tokens/s of parallel drafting by temperature.

    Raises:
        ConfigError: the file holds no bound, or one of other temperatures.
    """
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        temperatures = [float(value) for value in written["temperatures"]]
        plan = next(plan for plan in written["plans"] if plan["bound"] is not None)
        most = float(plan["bound"]["tokens_per_s"])
        lost_to = plan["bound"]["lost_to"]
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise ConfigError(
            f"{path} holds no plan with a bound ({type(error).__name__}: {error}): make one with forerun plan --json "
            f"{path}, of a trace that forerun bench trace recorded"
        ) from None
    if len(temperatures) != 1 or temperatures[0] not in speeds:
        raise ConfigError(
            f"{path} is for answers at temperature {' and '.join(f'{value:g}' for value in temperatures)}, the run "
            f"has parallel drafting at {', '.join(f'{value:g}' for value in speeds) or 'none'}: plan with --temperature"
        )
    speed = speeds[temperatures[0]]
    lost = ", ".join(f"{tokens_per_s:.0f} to {name}" for name, tokens_per_s in lost_to.items())
    print(
        f"\nparallel at temperature {temperatures[0]:g}: {speed:.0f} tokens/s, {speed / most:.2f} of the bound of "
        f"{most:.0f}; the plan's {plan['tokens_per_s']:.0f} lose {lost}"
    )


def parts(outcome: "Outcome") -> dict[str, float]:
    """The parts of a round; `late` and `passes lost` are shares of all rounds and of all draft passes."""
    return {
        "round": outcome.round_s,
        "pass": outcome.per_round("pass_s"),
        "miss wait": outcome.per_round("miss_wait_s"),
        "hit wait": outcome.per_round("hit_wait_s"),
        "beside": max(0.0, outcome.overhead_s),  # the sum of rounded times may be slightly below 0
        "late": outcome.per_round("num_late"),
        "rows lost": outcome.wasted_rows_per_round,
        "passes lost": outcome.useless_expansions,
    }
