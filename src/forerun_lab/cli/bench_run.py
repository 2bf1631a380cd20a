"""forerun bench run: drafters and peers answer the same questions in turn."""

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from forerun.cli.drafter_options import ITSELF
from forerun.cli.engine_loading import require_readable, with_cache
from forerun.cli.failures import find_model, find_model_or_head, say
from forerun.cli.flags import option, option_of, output, with_flags_of, with_options
from forerun.cli.options import GRAMMAR_FLAG, JSON_SCHEMA_FLAG, SamplingOptions
from forerun.core.config import SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, Automatic
from forerun.core.errors import ConfigError
from forerun.core.paths import cache_folder
from forerun_lab.cli.contestants import BenchEngineOptions, DraftingOptions, read_entrants

if TYPE_CHECKING:
    from forerun.checkpoints.source import CheckpointSource
    from forerun_lab.bench.data.datasets import Dataset
    from forerun_lab.bench.run.entrants import Entrant
    from forerun_lab.bench.run.interleaved import Progress

DRAFTERS_WITH_DRAFT: Final = "none,draft_model,prompt_lookup"
DRAFTERS_WITHOUT_DRAFT: Final = "none,prompt_lookup"
ADDRESS: Final = re.compile(r"https?://(\[[\da-fA-F:]+\]|[^/\s:\[\]]+)(:\d{1,5})?(/\S*)?")


@with_flags_of(panel="Who answers")
class Who:
    """The contestants."""

    target: Annotated[str, option("--target", help="Checkpoint folder, GGUF file or hub name.")] = BUILTIN_TARGET
    drafters: Annotated[
        list[str] | None,
        option(
            "--drafters",
            "--drafter",
            "--spec-method",
            help="Drafters of this engine, separated by commas, each with its own settings if wanted, such as "
            "parallel:verify_width=8,draft_width=8; repeatable; none is always included "
            "[draft_model if a draft is known, and prompt_lookup].",
        ),
    ] = None
    peers: Annotated[
        str, option("--peers", help="Other engines, separated by commas, such as transformers,llama_server.")
    ] = ""
    url: Annotated[list[str] | None, option("--url", help="PEER=URL of a running server; repeatable.")] = None
    serve: Annotated[
        list[str] | None, option("--serve", help="PEER=COMMAND that starts a server on this machine; repeatable.")
    ] = None
    binary: Annotated[Path | None, option("--llama-server", help="Path of the llama-server binary.")] = None
    tune: Annotated[bool, option("--tune", help="First tune all contestants' settings, on other questions.")] = False


@with_flags_of(SamplingParams, panel="What is measured", shown=("presence_penalty", "frequency_penalty"))
class What:
    """The data sets, lengths and sampling of a run."""

    data: Annotated[
        str, option("--data", help="Data sets or .jsonl files, separated by commas, such as mt_bench,gsm8k.")
    ] = "builtin"
    data_folder: Annotated[Path | None, option("--data-folder", help="Holds NAME/question.jsonl of each data set.")] = (
        None
    )
    num_prompts: Annotated[int, option("--num-prompts", help="Questions from each data set.")] = 20
    max_new_tokens: Annotated[int, option_of(SamplingParams, "max_new_tokens", help="Tokens per answer.")] = 128
    temperature: Annotated[
        list[float] | None, option_of(SamplingParams, "temperature", help="0 is greedy; repeatable [0].")
    ] = None
    top_k: Annotated[int | None, option_of(SamplingParams, "top_k", help="Keep the k likeliest; 0 keeps all.")] = None
    top_p: Annotated[
        float | None, option_of(SamplingParams, "top_p", help="Keep the likeliest up to this probability.")
    ] = None
    min_p: Annotated[
        float | None, option_of(SamplingParams, "min_p", help="Drop tokens below this share of the best probability.")
    ] = None
    repetition_penalty: Annotated[
        float | None, option_of(SamplingParams, "repetition_penalty", help="Above 1: fewer repeats; 1: off.")
    ] = None
    repeats: Annotated[int, option("--repeats", help="How often each question is asked.")] = 1
    task_after_task: Annotated[
        bool,
        option("--task-after-task", help="Ask all questions of one data set before the next; else they alternate."),
    ] = False
    seed: Annotated[
        int, option_of(SamplingParams, "seed", help="Seed of the first question; it grows by 1 with each question.")
    ] = 0
    json_schema: Annotated[str | None, JSON_SCHEMA_FLAG] = None
    grammar: Annotated[str | None, GRAMMAR_FLAG] = None

    def params(self) -> SamplingParams:
        """The parameters of all questions, which do not come from the model; temperatures follow in turn."""
        flags = {field.name for field in fields(cast(Any, SamplingOptions))} - {"temperature"}
        return SamplingOptions(**{name: value for name, value in vars(self).items() if name in flags}).params()


@with_options(Who, DraftingOptions, What, BenchEngineOptions)
def run(
    who: Who,
    drafting: DraftingOptions,
    what: What,
    machine: BenchEngineOptions,
    out: Annotated[
        Path, output("--out", "-o", metavar="FOLDER", help="Folder of the run; an interrupted run is continued.")
    ],
) -> None:
    """Ask drafters and peers the same questions in turn; record times, and whether the texts are equal."""
    source = find_model(who.target)
    peers = names(who.peers)
    draft = draft_of(drafting.draft, who.target)
    named = who.drafters or [DRAFTERS_WITHOUT_DRAFT if draft is None else DRAFTERS_WITH_DRAFT]
    entrants = read_entrants(named, who.target, drafting, machine, has_peers=bool(peers))
    for entrant in entrants:
        require_readable(entrant.config, source)
    entrants = tuple(with_prepared_sets(entrant, source) for entrant in entrants)
    if draft is not None:
        find_model_or_head(draft)
    from forerun_lab.bench.records.run_folder import NAME, left_out, read_run
    from forerun_lab.bench.run.session import RunRequest, play  # imports torch

    request = RunRequest(
        entrants=entrants,
        draft=draft,
        peers=peers,
        data=names(what.data),
        data_folder=what.data_folder,
        num_prompts=what.num_prompts,
        temperatures=tuple(what.temperature or (0.0,)),
        repeats=what.repeats,
        sampling=what.params(),
        tune=who.tune,
        task_after_task=what.task_after_task,
        out=out,
        cache=cache_folder(),
        urls=dict(map(read_url, who.url or ())),
        commands=commands_of(who),
        command=shlex.join(["forerun", *sys.argv[1:]]),
    )
    with progress_bar() as on_progress:
        play(request, on_data=say_data, on_progress=on_progress)
    for name, reason in left_out(read_run(out / NAME)).items():
        say(f"forerun: left out: {name}: {reason}")
    say(f"forerun: the run is in {out}; show it with: forerun bench report {out}")


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def draft_of(draft: str | None, target: str) -> str | None:
    """The draft model that the flag names, or the known one; None if there is none."""
    from forerun.engine.known_draft import draft_for, known_draft

    if draft is None:
        return known_draft(target)
    return None if draft == ITSELF else draft_for(target, draft)


def with_prepared_sets(entrant: "Entrant", source: "CheckpointSource") -> "Entrant":
    """The entrant with the files that `forerun generate` would find in forerun's cache, but not with what `auto` has
    learnt, since the run would depend on earlier ones."""
    if isinstance(entrant.config.drafter, Automatic):
        return entrant
    return replace(entrant, config=replace(entrant.config, drafter=with_cache(entrant.config.drafter, source)))


def read_url(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not ADDRESS.fullmatch(url):
        raise ConfigError(f"--url {text!r} must have the form PEER=URL, such as vllm=http://127.0.0.1:8000")
    return name, url


def commands_of(who: Who) -> dict[str, str]:
    """The command line that starts each server; one binary serves all peers that are llama-server."""
    found = {}
    if who.binary is not None:
        found = {name: shlex.quote(str(who.binary)) for name in names(who.peers) if name.startswith("llama_server")}
    for text in who.serve or ():
        name, _, command = text.partition("=")
        if not is_command(command):
            raise ConfigError(f"--serve {text!r} must have the form PEER=COMMAND, such as 'vllm=vllm serve'")
        found[name] = command
    return found


def is_command(text: str) -> bool:
    """Whether a shell would read words in it."""
    with suppress(ValueError):  # a quotation that does not end
        return bool(shlex.split(text))
    return False


def say_data(dataset: "Dataset", num_too_long: int) -> None:
    """Print a data set's source and licence."""
    too_long = f"; {num_too_long} too long for the context are left out" if num_too_long else ""
    say(f"forerun: {dataset.name}: {len(dataset.questions)} questions, {dataset.source}, {dataset.licence}{too_long}")


@contextmanager
def progress_bar() -> Iterator[Callable[[int], "Progress"]]:
    """A bar with the remaining time on a terminal; without one, a line for every tenth of the answers."""
    if not sys.stderr.isatty():
        yield lines_of_progress
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("answers"))
    # Drawn between answers only: a thread that draws while a drafter is timed would slow it down.
    with Bar(*columns, TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False) as bar:

        def start(total: int) -> "Progress":
            task = bar.add_task("", total=total)

            def show(done: int, name: str) -> None:
                bar.update(task, completed=done, description=f"{name:40.40}", refresh=True)

            return show

        yield start


def lines_of_progress(total: int) -> "Progress":
    last_tenth = -1

    def show(done: int, name: str) -> None:
        nonlocal last_tenth
        if total and 10 * done // total > last_tenth:
            last_tenth = 10 * done // total
            say(f"forerun: {done} of {total} answers")

    return show
