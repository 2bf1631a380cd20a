"""The loss curves of a training run as one picture."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

Values = NDArray[np.float64]
Record = dict[str, float]
TEXT_COLOUR = "#1f5fa8"
GUESS_COLOUR = "#c4561d"
INK = "#333333"
HALF_LIFE_SHARE = 0.02  # of the run: how far back the smoothed line looks


def read_log(log: Path) -> list[Record]:
    """Every complete line of log.jsonl; a run that was killed may leave half a line at the end."""
    records = []
    for line in log.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def column(records: list[Record], name: str, scale: float = 1.0) -> Values:
    return np.array([record[name] for record in records], dtype=np.float64) * scale


def smooth(values: Values) -> Values:
    """Exponential moving average, corrected for its start."""
    keep = 0.5 ** (1.0 / max(1.0, HALF_LIFE_SHARE * len(values)))
    total = weight = 0.0
    averages = np.empty_like(values)
    for number, value in enumerate(values):
        total = keep * total + (1.0 - keep) * value
        weight = keep * weight + (1.0 - keep)
        averages[number] = total / weight
    return averages


def draw(axes: Axes, *, x: Values, values: Values, points: tuple[Values, Values], colour: str) -> None:
    """Raw values faintly, their average as a line, held-out values as points with the last one written out."""
    axes.plot(x, values, color=colour, alpha=0.18, linewidth=0.7)
    axes.plot(x, smooth(values), color=colour, linewidth=1.8, label="training text, smoothed")
    point_x, point_y = points
    if len(point_y):
        style: dict[str, Any] = {"marker": "o", "markersize": 4.5, "linestyle": "none", "zorder": 3}
        axes.plot(point_x, point_y, color=INK, label="held-out text", **style)
        axes.annotate(
            f"{point_y[-1]:.2f}",
            (point_x[-1], point_y[-1]),
            xytext=(0, 9),
            textcoords="offset points",
            color=INK,
            fontsize=9,
            fontweight="bold",
            ha="center",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
        )
    shown = smooth(values)[len(values) // 50 :]
    axes.set_ylim(0.0 if shown.min() < 1.0 else shown.min() * 0.85, max(shown.max(), *point_y[:1], 0.1) * 1.08)


def decorate(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("minutes", color=INK)
    axes.set_ylabel("nats per token", color=INK)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    axes.margins(x=0.02)


def plot_losses(log: Path, picture: Path) -> None:
    """Draw the target's loss and the draft's distance from the target over time into `picture`.

    Args:
        log: log.jsonl as `forerun_lab.training.train` writes it: loss and kl per step, held_out_loss and
            held_out_kl now and then.
        picture: file to write; its suffix names the format.
    """
    records = read_log(log)
    if not records:
        raise ValueError(f"{log} holds no training step yet: train first")
    evaluated = [record for record in records if "held_out_loss" in record]
    joint = [record for record in records if "loss" in record]
    guesses = [
        record if "kl" in record else record | {"kl": record["distil_kl"]}
        for record in records
        if "kl" in record or "distil_kl" in record
    ]
    point_x = column(evaluated, "elapsed_s", 1 / 60)
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw(
        left,
        x=column(joint, "elapsed_s", 1 / 60),
        values=column(joint, "loss"),
        points=(point_x, column(evaluated, "held_out_loss")),
        colour=TEXT_COLOUR,
    )
    draw(
        right,
        x=column(guesses, "elapsed_s", 1 / 60),
        values=column(guesses, "kl"),
        points=(point_x, column(evaluated, "held_out_kl")),
        colour=GUESS_COLOUR,
    )
    decorate(left, "target: loss on text")
    decorate(right, "draft: distance from the target (KL)")
    minutes = records[-1]["elapsed_s"] / 60
    agreement = f", same next token {evaluated[-1]['agreement']:.0%} of the time" if evaluated else ""
    figure.suptitle(
        f"step {records[-1]['step']:,} after {minutes:.0f} minutes{agreement}",
        fontsize=10,
        color=INK,
        x=0.01,
        ha="left",
    )
    figure.savefig(picture, dpi=140)
