"""The curves of a distillation as one picture."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forerun.core.output_file import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS, OVERLAP, HITS, INK = "#1f5fa8", "#c4561d", "#3a7d44", "#333333"
SMOOTHED: Final = 20  # steps whose losses are averaged


def draw_curves(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss and acceptance over the time of training, where matplotlib is installed.

    Args:
        lines: the lines of `RunLog`: {"kind": "step", "trained_s", "loss"} and
            {"kind": "score", "trained_s", "loss", "overlap", "hits", "hits_of_several"}.
        path: the file to write; its suffix is the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    steps = [line for line in lines if line["kind"] == "step"]
    scores = [line for line in lines if line["kind"] == "score"]
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    minutes = [line["trained_s"] / 60 for line in scores]
    _smooth_line(left, steps)
    left.plot(minutes, [line["loss"] for line in scores], "o", color=INK, markersize=4, label="held-out texts")
    for name, label, colour in (
        ("overlap", "one guess accepted, temperature 1", OVERLAP),
        ("hits", "first guess right, greedy", HITS),
        ("hits_of_several", "one of four guesses right, greedy", LOSS),
    ):
        right.plot(minutes, [100 * line[name] for line in scores], "o-", color=colour, markersize=3, label=label)
    _decorate(left, "distance from the target", "nats per token")
    _decorate(right, "chance of acceptance, held-out texts", "percent")
    picture = BytesIO()
    figure.savefig(picture, dpi=130, format=path.suffix[1:])
    write_whole(path, picture.getvalue())


def _smooth_line(axes: "Axes", steps: Sequence[dict[str, Any]]) -> None:
    means = [
        sum(line["loss"] for line in steps[max(0, end - SMOOTHED) : end]) / min(end, SMOOTHED)
        for end in range(1, len(steps) + 1)
    ]
    axes.plot([line["trained_s"] / 60 for line in steps], means, color=LOSS, label="texts learnt from, smoothed")


def _decorate(axes: "Axes", title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel("minutes of training", color=INK)
    axes.set_ylabel(unit, color=INK)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
