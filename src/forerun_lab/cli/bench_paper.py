"""forerun bench paper: a paper's tables and ablations, on this machine, paced, or projected."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.checkpoints.short_names.catalogue import find_named
from forerun.cli.failures import find_draft_model, find_model, say
from forerun.cli.flags import option, output, with_flags_of, with_options
from forerun.cli.progress import progress
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET, Parallel
from forerun.core.errors import require
from forerun.core.optional_packages import install_command
from forerun.core.paths import cache_folder
from forerun_lab.cli.bench_report import has_matplotlib
from forerun_lab.cli.bench_run import names, progress_bar, say_data

if TYPE_CHECKING:
    from forerun_lab.papers.experiments import Contest
    from forerun_lab.papers.play import PaperRequest
    from forerun_lab.papers.report import Section
    from forerun_lab.planner.roofline import Machine
    from forerun_lab.planner.swiftspec import Pair

PAPERS: Final = ("swiftspec", "swift")
HOWS: Final = {"swiftspec": ("paced", "projected"), "swift": ("measured",)}
KNOWN_SOURCES: Final = ("measured", "paced", "projected")
PAIR: Final = "llama3"
MODEL: Final = "llama2-13b"
STRETCH: Final = 2.0
MACHINE: Final = "8xH800"
SMALL: Final = "smollm2"  # taken if it is on this machine already
ALL: Final = "all"
QUICK_PROMPTS: Final = {"swiftspec": 8, "swift": 6}  # in all, but at least one from each data set
QUICK_TOKENS: Final = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    title: str
    sections: Sequence["Section"]
    notes: Sequence[str]


@with_flags_of(panel="What stands for the paper's models and data")
class StandIns:
    """Models and questions."""

    target: Annotated[
        str | None, option("--target", help="The target that runs here [smollm2 if it is here, else builtin].")
    ] = None
    draft: Annotated[
        str | None, option("--draft", help="Its draft model, for SwiftSpec; auto: the known one [auto].")
    ] = None
    data: Annotated[str | None, option("--data", help="Data sets, separated by commas [the paper's].")] = None
    data_folder: Annotated[Path | None, option("--data-folder", help="Holds NAME/question.jsonl of each data set.")] = (
        None
    )
    num_prompts: Annotated[int, option("--num-prompts", help="Questions from each data set.")] = 10
    max_new_tokens: Annotated[int, option("--max-new-tokens", "-n", help="Tokens per answer.")] = 128


@with_flags_of(EngineConfig, panel="Machine", only=("dtype", "weights", "device", "num_threads", "target_ranks"))
class Here:
    """The engines that run at this machine's speed."""

    draft_ranks: Annotated[
        int | None, option("--draft-ranks", help="Processes or GPUs that share SwiftSpec's draft [1].")
    ] = None


@with_options(StandIns, Here)
def paper(
    stand_ins: StandIns,
    here: Here,
    name: Annotated[str, typer.Argument(metavar="PAPER", help="swiftspec or swift.")],
    out: Annotated[
        Path, output("--out", "-o", metavar="FOLDER", help="Folder of the results; an interrupted run is continued.")
    ],
    pair: Annotated[
        str | None,
        option(
            "--pair",
            help=f"SwiftSpec's models: llama3.3, llama3, deepseek, qwen2, r1-qwen, r1-llama, or all [{PAIR}].",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "--model",
            help=f"SWIFT's model: llama2-13b, llama2-13b-chat, llama2-70b, codellama-13b or codellama-34b [{MODEL}].",
        ),
    ] = None,
    how: Annotated[
        str | None,
        option("--how", help="measured, paced, projected, with commas [paced,projected; of swift measured]."),
    ] = None,
    stretch: Annotated[
        float | None,
        option(
            "--stretch",
            help=f"Paced passes last so many times as long as the paper's; speeds are scaled [{STRETCH:g}].",
        ),
    ] = None,
    machine: Annotated[
        str | None,
        option(
            "--machine",
            help=f"Whose times the passes have: 8xH800, 8xH800-floor, 8xH100 or a TOML file [{MACHINE}].",
        ),
    ] = None,
    quick: Annotated[bool, option("--quick", help="Few and short answers: minutes on two cores.")] = False,
) -> None:
    """Repeat a paper's tables: each figure measured here, paced or projected, with the paper's own beside it."""
    require(name in PAPERS, f"there is no paper {name!r} here: choose {' or '.join(PAPERS)}")
    is_swift = name == "swift"
    for_other = (
        {"--pair": pair, "--machine": machine, "--stretch": stretch, "--draft": stand_ins.draft,
         "--draft-ranks": here.draft_ranks}
        if is_swift else {"--model": model}
    )  # fmt: skip
    for flag, value in for_other.items():
        require(value is None, f"{flag} has no effect on the experiments of {name}: leave it out")
    sources = names(how) if how is not None else HOWS[name]
    allowed = KNOWN_SOURCES if name == "swiftspec" else ("measured",)
    for source in sources:
        require(source in allowed, f"--how {source!r} is not possible for {name}: choose among {', '.join(allowed)}")
    require(bool(sources), f"--how names no kind of figure: choose among {', '.join(allowed)}")
    require_used(here, stretch, machine, sources)
    stretch = STRETCH if stretch is None else stretch
    require(0 < stretch < inf, f"--stretch {stretch:g} must be above 0")
    require(has_matplotlib(), f"the report needs matplotlib, which is not installed: {install_command('matplotlib')}")
    subjects = subjects_of(name, model or MODEL if is_swift else pair or PAIR)
    from forerun_lab.papers.play import require_own  # imports torch

    require_own(out)
    found = []
    for subject in subjects:
        request = request_of(name, subject, sources, stretch, machine or MACHINE, quick, stand_ins, here, out)
        if len(subjects) > 1:
            request = replace(request, out=out / subject)
        found.append((play_swift if is_swift else play_swiftspec)(request))
        show(request, found[-1])
    if len(found) > 1:
        show(replace(request, out=out), together(subjects, found))


def require_used(here: Any, stretch: float | None, machine: str | None, sources: Sequence[str]) -> None:
    """Raise ConfigError for a flag on which none of these kinds of figures depends."""
    of_engines = {name: value for name, value in vars(here).items() if name != "threads"}
    for uses, given in (
        (("paced",), {"stretch": stretch}),
        (("paced", "projected"), {"machine": machine}),
        (("measured",), of_engines),
    ):
        for name, value in given.items():
            require(
                value is None or not set(uses).isdisjoint(sources),
                f"--{name.replace('_', '-')} has no effect on figures that are {' or '.join(sources)}: leave it out, "
                f"or add {uses[0]} to --how",
            )


def subjects_of(paper: str, text: str) -> tuple[str, ...]:
    """The pairs or models of a paper that a text names.

    Raises:
        ConfigError: there is no such pair or model, or none or one twice is named.
    """
    from forerun_lab.papers.swift import model_named
    from forerun_lab.planner.swiftspec import PAIRS, pair_named

    if paper == "swiftspec" and text == ALL:
        return tuple(each.name for each in PAIRS)
    found = tuple((model_named if paper == "swift" else pair_named)(name).name for name in names(text))
    require(bool(found) and len(set(found)) == len(found), f"{text!r} must name pairs or models, each once")
    return found


def together(subjects: Sequence[str], found: Sequence[Report]) -> Report:
    """One table of all pairs or models, of the lines that the paper has figures for."""
    from forerun_lab.papers.report import BY_SPLIT, Section, splits_by_pair

    lines = [
        replace(line, contestant=f"{subject}: {line.contestant}", experiment=subject)
        for subject, report in zip(subjects, found, strict=True)
        for section in report.sections
        for line in section.lines
        if line.published_tokens_per_s is not None or line.published_ratio is not None
    ]
    sections = [Section(name="all", title="All that the paper has figures for", lines=tuple(lines), pictures={})]
    projected = {section.name: section for report in found for section in report.sections if is_projected(section)}
    for name, first in projected.items():
        pairs = {
            report.title.partition(": ")[2]: section.lines
            for report in found
            for section in report.sections
            if section.name == name
        }
        tables = {BY_SPLIT: splits_by_pair(pairs)}
        sections.append(Section(name=name, title=first.title, lines=(), texts=first.texts, tables=tables, pictures={}))
    title = f"{found[0].title.partition(':')[0]}: {', '.join(subjects)}"
    return Report(title=title, sections=sections, notes=found[0].notes)


def is_projected(section: "Section") -> bool:
    return bool(section.lines) and section.lines[0].source == "projected"


def show(request: "PaperRequest", found: Report) -> None:
    """Write the report, and print its tables."""
    from forerun_lab.papers import report

    models = request.target if request.draft is None else f"{request.target} with {request.draft}"
    about = f"{models} stands for the paper's models."
    files = report.write(request.out, found.title, about, found.sections, found.notes)
    print((request.out / "report.md").read_text(encoding="utf-8"))
    say(f"forerun: the report is in {files[0]}")


def request_of(
    name: str,
    subject: str,
    sources: tuple[str, ...],
    stretch: float,
    machine: str,
    is_quick: bool,
    stand_ins: Any,
    here: Any,
    out: Path,
) -> "PaperRequest":
    """The flags as one value, with all defaults settled."""
    from forerun.cli.flags import given_settings
    from forerun.engine.known_draft import draft_for
    from forerun_lab.bench.data.datasets import load_dataset

    target = stand_ins.target or (SMALL if is_here(SMALL) else BUILTIN_TARGET)
    find_model(target)
    draft = None
    if name == "swiftspec":
        draft = draft_for(target, stand_ins.draft)
        find_draft_model(draft)
    data = data_of(name, stand_ins, is_quick)
    for each in data:  # raises if a set cannot be had
        load_dataset(each, folder=stand_ins.data_folder, cache=cache_folder() / "data")
    num_prompts = stand_ins.num_prompts
    max_new_tokens = stand_ins.max_new_tokens
    require(num_prompts >= 1, f"--num-prompts {num_prompts} must be >= 1")
    require(max_new_tokens >= 1, f"--max-new-tokens {max_new_tokens} must be >= 1")
    draft_ranks = here.draft_ranks if here.draft_ranks is not None else 1
    settings = given_settings(EngineConfig, here)
    EngineConfig(target=target, drafter=Parallel(ranks=draft_ranks), **settings)  # raises if a value is invalid
    from forerun_lab.papers.play import PaperRequest  # imports torch

    return PaperRequest(
        paper=name,
        subject=subject,
        target=target,
        draft=draft,
        data=data,
        num_prompts=min(num_prompts, -(-QUICK_PROMPTS[name] // len(data))) if is_quick else num_prompts,
        max_new_tokens=min(max_new_tokens, QUICK_TOKENS) if is_quick else max_new_tokens,
        sources=sources,
        stretch=stretch,
        machine=machine,
        is_quick=is_quick,
        settings=settings,
        draft_ranks=draft_ranks,
        out=out,
        cache=cache_folder(),
        data_folder=stand_ins.data_folder,
        command=shlex.join(["forerun", *sys.argv[1:]]),
    )


def is_here(name: str) -> bool:
    """Whether a model with a short name is on this machine already."""
    from forerun.checkpoints.short_names.local import find_local

    named = find_named(name)
    return named is not None and find_local(named) is not None


def data_of(name: str, stand_ins: Any, is_quick: bool) -> tuple[str, ...]:
    """The data sets; a quick run takes those that are on this machine, else the built-in one."""
    from forerun_lab.bench.data.datasets import BUILTIN, is_local
    from forerun_lab.papers import swift, swiftspec

    if stand_ins.data is not None:
        return names(stand_ins.data)
    papers = swiftspec.SETS if name == "swiftspec" else swift.SETS
    if not is_quick:
        return papers
    local = [each for each in papers if is_local(each, folder=stand_ins.data_folder, cache=cache_folder() / "data")]
    if not local:
        say(f"forerun: none of {', '.join(papers)} is on this machine: the built-in questions are asked instead")
    return tuple(local) or (BUILTIN,)


def play_swiftspec(request: "PaperRequest") -> Report:
    """SwiftSpec's experiments: the projections first, since they choose a split."""
    from forerun_lab.papers import play, report, swiftspec
    from forerun_lab.planner.roofline import machine_named
    from forerun_lab.planner.swiftspec import READINGS, pair_named, profile_of

    pair = pair_named(request.subject)
    request = request.continued()
    machine = machine_named(request.machine)
    profile = profile_of(pair, machine, READINGS[0])
    if set(request.sources) & {"paced", "projected"}:
        swiftspec.require_divisible(pair, profile)
    request.keep()
    projected: list[Section] = []
    chosen = None
    if "projected" in request.sources:
        with progress("recording guesses") as show:
            traces = play.record_guesses(request, show)
        with progress("simulating every split") as show:
            lines = play.project(request, pair, profile, traces, show)
        chosen = play.chosen_units(lines)
        num_tokens = sum(len(trace.token_ids) for trace in traces)
        told = f"Guesses recorded at {num_tokens} tokens of {len(traces)} answers of {request.target}."
        title = f"Every split of eight GPUs, times of {machine.name}"
        projected.append(report.splits_section(lines, title, [told]))
        if not request.is_quick:
            projected += project_published(request, pair, machine)
    contests: list[Contest] = []
    assert request.draft is not None, "every run of SwiftSpec's experiments has a draft"
    if "paced" in request.sources:
        contests += swiftspec.paced_contests(pair, profile, request.draft, request.stretch, chosen)
    if "measured" in request.sources:
        contests += swiftspec.measured_contests(pair, request.draft, request.settings, request.draft_ranks)
    sections = [*play_contests(request, contests), *projected]
    return Report(title=f"SwiftSpec: {pair.target} with {pair.draft}", sections=sections, notes=NOTES_ON_SWIFTSPEC)


def project_published(request: "PaperRequest", pair: "Pair", machine: "Machine") -> list["Section"]:
    """The same for synthetic pairs that accept as much as the paper's only length says; in both readings of it for the
    pair whose length it is."""
    from forerun_lab.papers import play, report
    from forerun_lab.planner.swiftspec import READINGS, profile_of
    from forerun_lab.planner.synthetic import traces_for

    sections = []
    for reading in READINGS if pair.serial_tokens_per_s is not None else READINGS[:1]:
        profile = profile_of(pair, machine, reading)
        name = f"splits_{reading.accepted:g}"
        with progress(f"simulating every split with {reading.accepted:g} accepted tokens") as show:
            lines = play.project(request, pair, profile, traces_for(reading.accepted), show, name=name)
        title = f"The same for a synthetic pair that accepts {reading.accepted:g} tokens a serial round"
        sections.append(report.splits_section(lines, title, [READING]))
    return sections


def play_swift(request: "PaperRequest") -> Report:
    """SWIFT's experiments, with the course of its search."""
    from forerun_lab.papers import play, report, swift

    model = swift.model_named(request.subject)
    request = request.continued()
    request.keep()
    sections = play_contests(request, swift.contests(model))
    with progress("recording searches") as show:
        play.record_search(request, swift.searches(model), show)
    found = report.search_section(request.out)
    sections = sections if found is None else [*sections, found]
    return Report(title=f"SWIFT: {model.name}", sections=sections, notes=NOTES_ON_SWIFT)


def play_contests(request: "PaperRequest", contests: Sequence["Contest"]) -> list["Section"]:
    from forerun_lab.papers import play, report

    for contest in contests:
        say(f"forerun: {contest.title}")
        with progress_bar() as on_total:
            play.play_contest(request, contest, say_data, on_total)
    sections = [report.section_of(request.out, contest) for contest in contests]
    return [section for section in sections if section is not None]


READING: Final = (
    "The paper has one length, 3.63, of Qwen2-72B with Qwen2-1.5B in turn; all pairs are given it. It does not say "
    "whether the bonus token counts: if so, 2.63 are accepted, and a published draft time is that of two passes."
)
NOTES_ON_SWIFTSPEC: Final = (
    "The paper's speeds: means over six data sets, greedy, weights int4 (AWQ), 8 H800 (arXiv 2506.11309 and its "
    "repository). Its acceptance lengths are known for one pair (table 7), and it does not say whether they count the "
    "bonus token; tok/round counts it.",
    "A small pair stands for the paper's: it agrees more or less often than the paper's pair does, so compare the "
    "ratios of this table's lines with each other rather than a speed with the paper's.",
    "In parallel the depth has no effect: the tree grows until the verdict arrives.",
)
NOTES_ON_SWIFT: Final = (
    "The paper's speed-ups count the prefill and are means over requests of tokens/s; ours are of decoding, as in "
    "forerun bench report.",
    "A small model has few layers that it can do without, so expect less than the paper's gains of 13B and more.",
)
