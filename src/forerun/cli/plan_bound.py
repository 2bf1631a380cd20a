"""What forerun plan says of the bound: how near the best parallel plan comes to it, and where the rest goes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forerun.planner.bound import Bound
    from forerun.planner.outcome import Outcome
    from forerun.planner.plan import Plan

WIDTH: Final = 100  # of the table, which is narrower
HEADS: Final = ("tokens/s", "ms", "pass", "miss wait", "hit wait", "beside", "late", "rows lost", "passes lost")


def show_bound(plans: "Sequence[Plan]") -> None:
    """Print it for the plan that has a bound, if one has."""
    for plan in plans:
        if plan.bound is not None:
            _print_bound(plan, plan.bound)


def bound_entry(bound: "Bound") -> dict[str, Any]:
    """The same for JSON."""
    return {
        "tokens_per_s": bound.outcome.tokens_per_s,
        "tokens_per_round": bound.outcome.tokens_per_round,
        "round_s": bound.outcome.round_s,
        "lost_to": dict(bound.lost_to),
    }


def _print_bound(plan: "Plan", bound: "Bound") -> None:
    from rich.console import Console
    from rich.table import Table

    outcome, most = plan.outcome, bound.outcome
    table = Table(box=None, pad_edge=False)
    table.add_column("a round of", no_wrap=True)
    for head in HEADS:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_row(f"{plan.kind} {plan.split.name}", *_cells(outcome))
    table.add_row("its bound", *_cells(most))
    lost = ", ".join(f"{name} {speed:.0f}" for name, speed in bound.lost_to.items())
    print(f"\n{outcome.tokens_per_s / most.tokens_per_s:.2f} of the bound; tokens/s lost to {lost}\n")
    Console(width=WIDTH, highlight=False).print(table)


def _cells(outcome: "Outcome") -> tuple[str, ...]:
    """Milliseconds where no head says otherwise; `late` and `passes lost` are shares."""
    waits_s = (outcome.per_round("miss_wait_s"), outcome.per_round("hit_wait_s"))
    return (
        f"{outcome.tokens_per_s:.0f}",
        *(f"{1e3 * part_s:.2f}" for part_s in (outcome.round_s, outcome.per_round("pass_s"), *waits_s)),
        f"{1e3 * max(0.0, outcome.overhead_s):.2f}",
        f"{outcome.per_round('num_late'):.2f}",
        f"{outcome.wasted_rows_per_round:.1f}",
        f"{outcome.useless_expansions:.2f}",
    )
