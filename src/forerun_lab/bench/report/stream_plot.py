"""The plot of speed over a stream of requests, while self-drafting searches and after it."""

from forerun_lab.bench.report.plots import FAINT, TEXT, _picture
from forerun_lab.bench.report.streams import Stream, changes_of_task, title_of

ROOM_FOR_LEGEND = 1.2  # of the fastest request, above which the legend stands
SPEED = "#c0fff1"
BASE = "#c0fff0"


def over_requests(stream: Stream, *, name: str) -> str:
    """Tokens/s by the number of the request, with the baseline's; hollow while the search goes on."""
    with _picture(name, (1040, 300), f"Tokens per second of {title_of(stream)}") as (axes, finish):
        for number, dataset in changes_of_task(stream):
            axes.axvline(number - 0.5, color=FAINT, linewidth=1)
            axes.text(number - 0.4, 1.0, dataset, transform=axes.get_xaxis_transform(), fontsize=11, va="bottom")
        timed = [request for request in stream.requests if request.tokens_per_s]
        based = [request for request in stream.requests if request.baseline_tokens_per_s]
        axes.plot(
            [request.number for request in based], [request.baseline_tokens_per_s or 0.0 for request in based],
            color=BASE, linewidth=1.5, linestyle="--", label="baseline",
        )  # fmt: skip
        axes.plot(
            [request.number for request in timed], [request.tokens_per_s or 0.0 for request in timed],
            color=SPEED, linewidth=2, label=stream.contestant,
        )  # fmt: skip
        for phase, is_filled in (("optimisation", False), ("acceleration", True)):
            chosen = [request for request in timed if request.phase == phase]
            axes.plot(
                [request.number for request in chosen], [request.tokens_per_s or 0.0 for request in chosen], "o",
                color=SPEED, markerfacecolor=SPEED if is_filled else "none", markersize=6, label=phase,
            )  # fmt: skip
        axes.set_ylim(0, ROOM_FOR_LEGEND * axes.get_ylim()[1])
        axes.set_xlabel("number of the request", color=TEXT)
        axes.set_ylabel("tokens/s")
        axes.grid(axis="y")
        axes.legend(frameon=False, loc="upper right", ncols=4)
    return finish()
