"""The results of a distillation, as JSON, as the draft's model card, and as curves."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from forerun import __version__
from forerun.core.model_spec import ModelSpec
from forerun.core.output_file import write_whole
from forerun_lab.distill.assess import DraftWorth
from forerun_lab.distill.config import DraftKind
from forerun_lab.distill.head_shape import TRAINABLE
from forerun_lab.distill.trainer import Score

WORDS: Final = {"model": "A small Llama", **{name: head.words for name, head in TRAINABLE.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillReport:
    """The results of a finished run.

    Args:
        target: the target's name as the user gave it.
        identity: a hash that identifies the target.
        writing_s, training_s: seconds.
        num_texts, num_tokens: texts and tokens written or read by the target.
        num_learnt_tokens: tokens trained on, repetitions counted.
        score: on held-out texts.
        worth: one entry per temperature; empty if no opening was held out.
        kind: of the draft; `spec` are the sizes of a head's layers.
    """

    target: str
    identity: str
    writing_s: float
    training_s: float
    num_texts: int
    num_tokens: int
    num_learnt_tokens: int
    spec: ModelSpec
    num_parameters: int
    target_vocab_size: int
    score: Score
    worth: Sequence[DraftWorth]
    kind: DraftKind = "model"

    def write(self, folder: Path) -> None:
        """Write report.json, and the model card next to the draft."""
        write_whole(folder / "distill" / "report.json", json.dumps({"forerun": __version__, **asdict(self)}, indent=2))
        write_whole(folder / "README.md", self.card(has_picture=(folder / "distill" / "curves.png").exists()))

    def card(self, *, has_picture: bool) -> str:
        """The model card."""
        spec = self.spec
        score = self.score
        picture = "\n![loss and acceptance](distill/curves.png)\n" if has_picture else ""
        return f"""# A draft for {self.target}

{WORDS[self.kind]} that guesses ahead for {self.target} (identity {self.identity}), made by `forerun distill`
{__version__}. Use it together with its target:

```bash
forerun generate --model {self.target} --draft .
```

The draft never changes the target's text. It was made from the target's weights and text, so the target's licence
applies to it too.

| | |
|---|---|
| layers, width, MLP | {spec.num_layers}, {spec.hidden_size}, {spec.intermediate_size} |
| parameters | {self.num_parameters:,} |
| tokens | {spec.vocab_size:,} of the target's {self.target_vocab_size:,} |
| texts | {self.num_texts:,} with {self.num_tokens:,} tokens, in {self.writing_s / 60:.1f} minutes |
| training | {self.num_learnt_tokens:,} tokens, in {self.training_s / 60:.1f} minutes |
| held-out texts | {score.loss:.3f} nats a token; first guess right {score.hits:.1%} |

{self.table()}
{picture}"""

    def table(self) -> str:
        """The table of measurements at every temperature."""
        if not self.worth:
            return "No text with a question was held out, so the speed-up of the draft was not measured."
        rows = [
            f"| {worth.temperature:g} | {worth.tokens_per_round:.2f} | {worth.lookup_tokens_per_round:.2f} | "
            f"{'-' if worth.speedup is None else f'{worth.speedup:.2f}x'} | "
            f"{worth.num_identical} of {worth.num_texts} |"
            for worth in self.worth
        ]
        names = ("temperature", "tokens per round", "tokens per round, prompt lookup alone", "speed-up")
        head = f"| {' | '.join(names)} | texts as without a draft |"
        return "\n".join([head, "|---|---|---|---|---|", *rows])


if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOSS = "#1f5fa8"
OVERLAP = "#c4561d"
HITS = "#3a7d44"
INK = "#333333"
SMOOTHED: Final = 20  # steps whose losses are averaged


def draw_curves(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw loss and acceptance over the time of training, if matplotlib is installed.

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
