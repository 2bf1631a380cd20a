"""forerun distill: a draft model for a target that has none."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from forerun.cli.failures import INTERRUPTED, find_model, say
from forerun.cli.flag_values import read_duration
from forerun.cli.flags import option, output, with_flags_of, with_options
from forerun.cli.interrupt import StopOnInterrupt
from forerun.cli.options import SHOWN, engine_config
from forerun.core.config import AUTO_DEVICE, EngineConfig
from forerun.core.optional_packages import install_command
from forerun_lab.cli.bench_report import has_matplotlib
from forerun_lab.distill.config import DistillConfig, DistillProgress, DistillStop, DraftKind

if TYPE_CHECKING:
    from forerun_lab.distill.report import DistillReport
    from forerun_lab.distill.run import Distillation

Draw = Callable[[DistillProgress], None]
LINE_EVERY_S: Final = 30.0


@with_flags_of(
    EngineConfig, panel=None, only=("dtype", "weights", "device", "num_threads", "chat_template"), shown=SHOWN
)
class DistillMachine:
    """The device and threads of the target."""

    device: Annotated[
        str,
        option("--device", help="A torch device, such as cuda; auto chooses a GPU that works and has room, else cpu."),
    ] = AUTO_DEVICE


@with_options(DistillMachine)
def distill(
    machine: DistillMachine,
    target: Annotated[str, typer.Argument(help="Short name, checkpoint folder, GGUF file or hub name.")],
    out: Annotated[
        Path, output("--out", metavar="FOLDER", help="Folder for the draft; a stopped run there is continued.")
    ],
    time: Annotated[
        str, option("--time", help="Time to write and learn, such as 1h30m; measuring takes a little more.")
    ] = "2h",
    text: Annotated[
        list[Path] | None, option("--text", help="File the target also reads; .jsonl holds conversations. Repeatable.")
    ] = None,
    questions: Annotated[
        list[Path] | None, option("--questions", help="Question file the target also answers. Repeatable.")
    ] = None,
    kind: Annotated[DraftKind, option("--kind", help="A small Llama, or a head on the target's features.")] = "model",
    layers: Annotated[int | None, option("--layers", help="Layers of the draft [by the cost of a pass].")] = None,
    hidden_size: Annotated[int | None, option("--hidden-size", help="Hidden size of the draft [the target's].")] = None,
    vocab_size: Annotated[
        int | None, option("--vocab-size", help="Tokens of the draft [those that make up 98.5 % of the target's text].")
    ] = None,
    seed: Annotated[int, option("--seed", help="Seed for texts and training.")] = 1,
) -> None:
    """Train a small draft model for a target, on text that the target writes. Use the draft with --draft FOLDER."""
    seconds = read_duration(time, flag="--time")
    asked = tuple(turn for path in questions or () for turn in _questions(path))
    find_model(target)
    from forerun.engine.auto_device import settle_device
    from forerun_lab.distill.run import Distillation  # imports torch

    config = DistillConfig(
        engine=settle_device(engine_config(machine, target=target)),
        out=out,
        time=seconds,
        text=tuple(text or ()),
        questions=asked,
        layers=layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        seed=seed,
        kind=kind,
    )
    distillation = Distillation(config)
    with StopOnInterrupt() as stop, drawing() as draw:
        stop.patience = 1
        report = _run(distillation, draw, stop)
    print(report.table())
    if not has_matplotlib():
        command = install_command("matplotlib")
        say(f"no picture of the curves was drawn, as matplotlib is not installed: {command}")
    speedups = [worth.speedup for worth in report.worth if worth.speedup is not None]
    if speedups and max(speedups) < 1.0:
        say("on this machine answers took longer with the draft than without: the default drafter will leave it out")
    say(f"the draft is in {out}; to use it: forerun generate --model {target} --draft {out}")


def _run(distillation: "Distillation", draw: Draw, stop: StopOnInterrupt) -> "DistillReport":
    """Run it, until a Ctrl-C asks it to stop."""

    def show(progress: DistillProgress) -> None:
        draw(progress)
        if stop.is_asked:
            raise DistillStop

    try:
        return distillation.run(show)
    except DistillStop:
        say("stopped; all progress is kept, and the same command continues")
        raise typer.Exit(INTERRUPTED) from None


def _questions(path: Path) -> tuple[str, ...]:
    """The first user message of each entry in a question file."""
    from forerun_lab.bench.data.questions import read_questions

    return tuple(question.turns[0] for question in read_questions(path))


@contextmanager
def drawing() -> Iterator[Draw]:
    """A function that draws the progress of the run."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    left = TextColumn("{task.fields[left]} left  {task.fields[detail]}")
    columns = (TextColumn("{task.description}"), BarColumn(), left)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the target", total=None, left="", detail="")

        def draw(progress: DistillProgress) -> None:
            bar.update(
                task,
                description=progress.doing,
                completed=progress.seconds,
                total=progress.total_s,
                left=clock(progress.total_s - progress.seconds),
                detail=progress.detail,
            )

        yield draw


def _lines() -> Draw:
    last_s = -inf
    doing = ""

    def draw(progress: DistillProgress) -> None:
        nonlocal last_s, doing
        if progress.doing != doing or monotonic() - last_s >= LINE_EVERY_S:
            last_s = monotonic()
            doing = progress.doing
            say(line_of(progress))

    return draw


def line_of(progress: DistillProgress) -> str:
    """What is done, the remaining time unless it is over, and details if there are any."""
    left_s = progress.total_s - progress.seconds
    rest = [f"{clock(left_s)} left"] if left_s > 0 else []
    rest += [progress.detail] if progress.detail else []
    return progress.doing + (f": {', '.join(rest)}" if rest else "")


def clock(seconds: float) -> str:
    """A time such as 1:05:09 or 5:09."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
