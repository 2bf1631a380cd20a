"""The report of a paper's experiments: our figures, what kind each is, and the paper's own beside them."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

from forerun.core.output_file import write_whole
from forerun_lab.bench.records.run_folder import NAME
from forerun_lab.bench.report import files, markdown, page, plots
from forerun_lab.bench.report.bootstrap import Estimate
from forerun_lab.bench.report.columns import TIMES, UNKNOWN, number, speed
from forerun_lab.bench.report.summary import Row, Summary, summarise
from forerun_lab.bench.report.wording import circumstances, headline, verdict_on_texts
from forerun_lab.papers.experiments import SOURCES, Contest, Line, Source, Variant
from forerun_lab.papers.play import SEARCH

FOLDER: Final = Path(__file__).parent
LATE: Final = 1.1  # passes that last longer than their pace by this factor did not keep up
BY_SET: Final = "Tokens per round by data set"
BY_SPLIT: Final = "tokens/s by GPUs of target + draft, projected"
TITLES: Final = ("contestant", "what it is", "tokens/s", f"{TIMES} plain", "tok/round", "figure", "the paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """An experiment in the report.

    Args:
        summary: of its run; None if nothing ran.
        texts: what else is to be said.
        tables: further tables by title; the first line of each has the heads of its columns.
        pictures: SVG by file name, in the page's colours, with the colours of its legend.
    """

    name: str
    title: str
    lines: tuple[Line, ...]
    summary: Summary | None = None
    texts: tuple[str, ...] = ()
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    pictures: Mapping[str, tuple[str, Mapping[str, str]]]


def write(folder: Path, title: str, about: str, sections: Sequence[Section], notes: Sequence[str]) -> list[Path]:
    """Write report.html, report.md, report.csv, report.json, the plots, and the full report of every run."""
    lines = [line for section in sections for line in section.lines]
    html = (
        page.templates(FOLDER)
        .get_template("page.html")
        .render(
            title=title,
            about=about,
            style=(page.FOLDER / "page.css").read_text(encoding="utf-8"),
            sections=sections,
            sources=sources_of(lines),
            titles=TITLES,
            cells=cells,
            notes=notes,
            facts=facts(sections),
        )
    )
    written = {
        folder / "report.html": html,
        folder / "report.md": in_markdown(title, about, sections, notes),
        folder / "report.csv": as_csv(lines),
        folder / "report.json": json.dumps([asdict(line) for line in lines], indent=1) + "\n",
    }
    for section in sections:
        for name, (picture, legend) in section.pictures.items():
            written[folder / "pictures" / f"{section.name}-{name}.svg"] = files.alone(picture, legend)
        if section.summary is not None:
            written[folder / section.name / "report.html"] = page.write(section.summary)
            written[folder / section.name / "report.csv"] = files.table(section.summary)
    for path, text in written.items():
        write_whole(path, text, makes_folder=True)
    return list(written)


def section_of(folder: Path, contest: Contest) -> Section | None:
    """The section of a contest; None if it was not played yet."""
    if not (folder / contest.name / NAME).exists():
        return None
    summary = summarise(folder / contest.name)
    if not summary.rows:
        return None
    known = {each.label: each for each in contest.contestants}
    rows = [at_the_papers_pace(row, contest.stretch) for row in summary.rows]
    lines = tuple(line_of(contest, known[row.contestant], row) for row in rows)
    found = headline(summary)
    texts = [f"{found.text} ({found.detail})." if found.detail else f"{found.text}.", verdict_on_texts(summary)]
    texts += late_passes(contest, known, summary)
    if contest.stretch != 1:
        texts.append(
            f"Every pass lasted {contest.stretch:g} times as long as the paper's, so that this machine keeps up, and "
            f"speeds are multiplied by {contest.stretch:g}: what a round costs beside its passes counts too little. "
            "The report of the run has its speeds as they were."
        )
    return Section(
        name=contest.name,
        title=contest.title,
        lines=lines,
        summary=summary,
        texts=tuple(texts),
        tables={BY_SET: rounds} if (rounds := rounds_by_set(lines)) else {},
        pictures=pictures_of(replace(summary, rows=tuple(rows))),
    )


def line_of(contest: Contest, contestant: Variant, row: Row) -> Line:
    published = contestant.published
    is_all = row.dataset is None
    value, low, high = ends_of(row.speed)
    ratio, ratio_low, ratio_high = ends_of(row.ratio)
    return Line(
        experiment=contest.name,
        contestant=contestant.label,
        words=contestant.words,
        dataset=row.dataset or "",
        source=contest.source,
        tokens_per_s=value,
        low=low,
        high=high,
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        tokens_per_round=row.drafting.tokens_per_round,
        is_idle=row.is_idle,
        published_tokens_per_s=published.tokens_per_s if is_all else None,
        published_ratio=published.speedup if is_all else None,
        published_tokens_per_round=published.tokens_per_round.get(row.dataset or ""),
        published_note=published.note if is_all else "",
    )


def at_the_papers_pace(row: Row, stretch: float) -> Row:
    """The row with the speeds and the round's time of passes that are not stretched."""
    speeds = row.speed
    if speeds is not None:
        low = None if speeds.low is None else stretch * speeds.low
        high = None if speeds.high is None else stretch * speeds.high
        speeds = replace(speeds, value=stretch * speeds.value, low=low, high=high)
    round_s = row.latency.round_s
    latency = replace(row.latency, round_s=None if round_s is None else round_s / stretch)
    return replace(row, speed=speeds, latency=latency)


def ends_of(estimate: Estimate | None) -> tuple[float | None, float | None, float | None]:
    """The value and the ends of its interval, as far as they are known."""
    return (None, None, None) if estimate is None else (estimate.value, estimate.low, estimate.high)


def late_passes(contest: Contest, known: Mapping[str, Variant], summary: Summary) -> Iterator[str]:
    """A warning for contestants whose passes lasted longer than they should."""
    late = []
    for row in summary.over_all(summary.temperatures[0]):
        contestant = known[row.contestant]
        if contestant.pace is None or contestant.verify_width is None or not row.shares or not row.latency.round_s:
            continue
        wanted_s = contestant.pace.step_s(contestant.verify_width)
        took_s = row.shares.verify * row.latency.round_s
        if took_s > LATE * wanted_s:
            late.append(f"{row.contestant} {1e3 * took_s:.1f} instead of {1e3 * wanted_s:.1f} ms")
    if late:
        yield (
            "This machine was too slow or too busy for the pace, so these speeds are too low: passes took, on average, "
            f"{', '.join(late)}. Use a quiet machine, or a larger --stretch."
        )


def pictures_of(summary: Summary) -> dict[str, tuple[str, Mapping[str, str]]]:
    """Speeds and tokens per round by data set, and where a round's time goes."""
    looks = plots.looks_of(summary)
    colours = {name: look.variable for name, look in looks.items()}
    of_sets = [row for row in summary.rows if row.dataset is not None]
    over_all = [row for row in summary.over_all(summary.temperatures[0]) if row.shares]
    found: dict[str, tuple[str, Mapping[str, str]]] = {
        "speeds": (plots.speeds(of_sets, summary.datasets, looks), colours),
        "tokens-per-round": (plots.tokens_per_round(of_sets, summary.datasets, looks), colours),
    }
    return found | ({"time-of-a-round": (plots.time_of_a_round(over_all), {})} if over_all else {})


def splits_section(lines: Sequence[Line], title: str, texts: Sequence[str]) -> Section:
    """The projections of the planner."""
    known = [line for line in lines if line.tokens_per_s is not None]
    marks = [line.published_tokens_per_s for line in known]
    return Section(
        name=lines[0].experiment,
        title=title,
        lines=tuple(lines),
        texts=tuple(texts),
        pictures={"speeds": (plots.ranking(list(map(bar_of, known)), marks), {})},
    )


def splits_by_pair(pairs: Mapping[str, Sequence[Line]]) -> list[list[str]]:
    """The planner's best speed of every split, a line for each pair of models; the first line has the heads."""
    found: list[list[str]] = []
    for pair, lines in pairs.items():
        planned = [line for line in lines if line.is_planned]
        parallel = {line.contestant.split()[1]: line.tokens_per_s for line in planned if "+" in line.contestant}
        in_turn = max(line.tokens_per_s or 0.0 for line in planned if line.contestant.startswith("serial"))
        best = max(parallel, key=lambda split: parallel[split] or 0.0)
        papers = next(line for line in lines if line.published_tokens_per_s and "+" in line.contestant)
        published = f"{papers.contestant.split()[1]}: {papers.published_tokens_per_s:.0f}"
        found = found or [["pair", "in turn", *parallel, "the planner's choice", "the paper"]]
        found.append([pair, speed(in_turn), *map(speed, parallel.values()), best, published])
    return found


def bar_of(line: Line) -> tuple[str, float, float, float]:
    """The name of a projection, its tokens/s, and the ends of its interval, or the value itself."""
    value = line.tokens_per_s or 0.0
    name = f"{line.contestant}, {line.words}"
    return name, value, min(value, line.low or value), max(value, line.high or value)


def search_section(folder: Path) -> Section | None:
    """How a search went; None if none was recorded."""
    file = folder / SEARCH
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    texts = []
    for words, search in found.items():
        points = search["points"]
        if not points:
            texts.append(f"{words}: no candidate was scored; the answers were too short.")
            continue
        last = points[-1]
        state = "goes on" if last["is_searching"] else "is over"
        skipped = f"{search['skipped']} of {search['of']} sublayers skipped"
        texts.append(
            f"{words}: {last['steps']} candidates scored, best matchness {last['matchness']:.2f}, {skipped}, "
            f"{last['search_s']:.1f} s of search, which {state}."
        )
    curves = {
        words: [(point["steps"], point["matchness"]) for point in search["points"]] for words, search in found.items()
    }
    return Section(
        name="search",
        title="Matchness by the number of candidates scored",
        lines=(),
        texts=tuple(texts),
        pictures={"matchness": (plots.curves(curves), {})},
    )


def cells(line: Line) -> list[str]:
    """A line of a table, as text."""
    ratio = UNKNOWN if line.ratio is None else f"{line.ratio:.2f}{TIMES}"
    if line.ratio_low is not None and line.ratio_high is not None:
        ratio += f" ({line.ratio_low:.2f}\N{EN DASH}{line.ratio_high:.2f})"
    if line.is_idle:
        ratio = "drafted nothing"
    said = []
    if line.published_tokens_per_s is not None:
        said.append(f"{line.published_tokens_per_s:.0f} tokens/s")
    if line.published_ratio is not None:
        said.append(f"{line.published_ratio:.2f}{TIMES}")
    if line.published_tokens_per_round is not None:
        said.append(f"length {line.published_tokens_per_round:.2f}")
    if line.published_note:
        said.append(line.published_note)
    shown = speed(line.tokens_per_s)
    if line.low is not None and line.high is not None:
        shown += f" ({line.low:.0f}\N{EN DASH}{line.high:.0f})"
    told = "; ".join(said) or UNKNOWN
    return [line.contestant, line.words, shown, ratio, number(line.tokens_per_round), line.source, told]


def rounds_by_set(lines: Sequence[Line]) -> list[list[str]]:
    """Tokens per round by data set, ours and the paper's lengths; the first line has the titles. Empty for one set."""
    sets = list(dict.fromkeys(line.dataset for line in lines if line.dataset))
    if len(sets) < 2:
        return []
    found = [["contestant", *sets]]
    for name in dict.fromkeys(line.contestant for line in lines):
        own = {line.dataset: line for line in lines if line.contestant == name}
        found.append([name, *(number(own[each].tokens_per_round) if each in own else UNKNOWN for each in sets)])
        papers = [own[each].published_tokens_per_round if each in own else None for each in sets]
        if any(value is not None for value in papers):
            found.append([f"{name}, the paper's length", *map(number, papers)])
    return found


def facts(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """The circumstances of the first run; the devices of contestants differ, so they are left out."""
    summaries = [section.summary for section in sections if section.summary is not None]
    return [pair for pair in circumstances(summaries[0]) if pair[0] != "device"] if summaries else []


def in_markdown(title: str, about: str, sections: Sequence[Section], notes: Sequence[str]) -> str:
    escape = markdown.escape
    parts = [f"# {escape(title)}", escape(about)]
    for section in sections:
        parts.append(f"## {escape(section.title)}")
        parts += map(escape, section.texts)
        if section.lines:
            rows = [[escape(cell) for cell in cells(line)] for line in section.lines if not line.dataset]
            parts.append(markdown.table(list(TITLES), rows, num_labels=2))
        for name, (heads, *lines) in section.tables.items():
            parts.append(f"{name}:")
            parts.append(markdown.table(list(heads), [[escape(cell) for cell in row] for row in lines]))
    found = sources_of([line for section in sections for line in section.lines])
    parts += [f"*{source}*: {words}." for source, words in found.items()]
    parts += [escape(note) for note in notes]
    return "\n\n".join(parts) + "\n"


def sources_of(lines: Sequence[Line]) -> dict[Source, str]:
    """The kinds of figures that a report has, and what each is."""
    return {source: words for source, words in SOURCES.items() if any(line.source == source for line in lines)}


def as_csv(lines: Sequence[Line]) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, [field.name for field in fields(Line)])
    writer.writeheader()
    writer.writerows(asdict(line) for line in lines)
    return out.getvalue()
