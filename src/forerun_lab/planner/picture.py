"""A plot of plans: the speed of every split."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forerun.core.errors import ConfigError
from forerun.core.optional_packages import install_command
from forerun_lab.planner.plan import Plan

COLOURS: Final = {"serial": "#8c8c8c", "parallel": "#2a6f97", "plain": "#d0d0d0"}
INCHES: Final = (8.0, 4.5)


def draw_plans(path: Path, plans: Sequence[Plan], *, title: str) -> None:
    """Plot a bar with its interval for every split, and write it to a file whose suffix is the format.

    Raises:
        ConfigError: matplotlib is not installed, the format is unknown, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # optional, and slow to import
    except ImportError as error:
        raise ConfigError(f"a plot needs matplotlib ({error}): {install_command('matplotlib')}") from error
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.add_subplot()
    ordered = sorted(plans, key=order_of)
    speeds = [plan.outcome.tokens_per_s for plan in ordered]
    ends = [plan.outcome.interval() for plan in ordered]
    below = [max(0.0, speed - low) for speed, (low, _) in zip(speeds, ends, strict=True)]
    above = [max(0.0, high - speed) for speed, (_, high) in zip(speeds, ends, strict=True)]
    axes.bar(
        range(len(ordered)), speeds, yerr=(below, above), capsize=3, color=[COLOURS[plan.kind] for plan in ordered]
    )
    axes.set_xticks(range(len(ordered)), [label_of(plan) for plan in ordered])
    axes.set_ylabel("tokens/s")
    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be written ({reason}): name a file like plan.svg") from error


def order_of(plan: Plan) -> tuple[int, int, bool]:
    """Plain, serial with fixed widths first, then parallel by the target's units."""
    return ("plain", "serial", "parallel").index(plan.kind), plan.split.target_units, is_adaptive(plan)


def label_of(plan: Plan) -> str:
    if plan.kind == "plain":
        return "none"
    return f"{plan.kind}{', adaptive' if is_adaptive(plan) else ''}\n{plan.split.name}"


def is_adaptive(plan: Plan) -> bool:
    return plan.tree is not None and plan.tree.adaptive
