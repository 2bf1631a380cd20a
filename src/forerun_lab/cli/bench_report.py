"""forerun bench report and compare: the results of a run, and whether a later run is slower."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from forerun.cli.failures import say
from forerun.cli.flags import option, output
from forerun.core.errors import ConfigError, require
from forerun.core.optional_packages import install_command
from forerun.core.output_file import require_writable, write_whole
from forerun_lab.cli.plan_bound import show_reached

if TYPE_CHECKING:
    from forerun_lab.bench.report.summary import Summary

SLOWER: Final = 1
MIN_WIDTH: Final = 100


def report(
    out: Annotated[list[Path], typer.Argument(help="The folder of a run, or record files.")],
    json_file: Annotated[Path | None, output("--json", help="Write the numbers as JSON to this file.")] = None,
    markdown: Annotated[Path | None, output("--markdown", help="Write the tables as Markdown.")] = None,
    html: Annotated[Path | None, output("--html", help="Write the page with all plots.")] = None,
    csv: Annotated[Path | None, output("--csv", help="Write the numbers as CSV.")] = None,
    svg: Annotated[
        Path | None, output("--svg", metavar="FOLDER", help="Write each plot as an SVG file into this folder.")
    ] = None,
    baseline: Annotated[
        str | None, option("--baseline", help="Contestant or record file to compare the others with.")
    ] = None,
    plan: Annotated[
        Path | None, option("--plan", help="File of forerun plan --json: compare parallel drafting with its bound.")
    ] = None,
) -> None:
    """Show the numbers of a run. A folder without flags gets report.json, .md, .csv and .html, and pictures/."""
    from forerun_lab.bench.report import files
    from forerun_lab.bench.report import markdown as markdown_report
    from forerun_lab.bench.report.summary import summarise
    from forerun_lab.bench.report.table import draw

    no_plots = f"plots need matplotlib, which is not installed: {install_command('matplotlib')}"
    if (html is not None or svg is not None) and not has_matplotlib():
        raise ConfigError(no_plots)
    for path in out:
        require(path.exists(), f"there is no {path}: name a folder that forerun bench run wrote to, or a record file")
    folder = out[0] if len(out) == 1 and out[0].is_dir() else None
    if folder is not None and not any((json_file, markdown, html, csv, svg)):
        json_file = folder / "report.json"
        markdown = folder / "report.md"
        csv = folder / "report.csv"
        if has_matplotlib():
            html = folder / "report.html"
            svg = folder / "pictures"
        else:
            say(f"forerun: report.html and pictures are left out: {no_plots}")
    if svg is not None:
        require_writable(svg / "accepted.svg")
    for path in filter(None, (json_file, markdown, html, csv)):
        require_writable(path, needs_folder=True)
    summary = summarise(out, baseline=baseline)
    print_wide(draw(summary))
    if plan is not None:
        show_reached(plan, speeds_of(summary, parallel_in(summary)))
    if json_file is not None:
        _write_file(json_file, summary.to_json())
    if markdown is not None:
        _write_file(markdown, markdown_report.write(summary))
    if csv is not None:
        _write_file(csv, files.table(summary))
    if svg is not None:
        for name, picture in files.pictures(summary).items():
            _write_file(svg / name, picture)
    if html is not None:
        from forerun_lab.bench.report import page

        _write_file(html, page.write(summary))


def compare(
    before: Annotated[Path, typer.Argument(help="report.json, run folder or record file of the first run.")],
    after: Annotated[Path, typer.Argument(help="The same for the second run.")],
    tolerance: Annotated[float, option("--tolerance", help="Slowdown to tolerate, as a fraction: 0.03 for 3 %.")] = 0.0,
) -> None:
    """Tell whether the second run is slower beyond noise. Exit code 1 if it is, 2 if the two cannot be compared."""
    from forerun_lab.bench.report.compare import RunSpeeds
    from forerun_lab.bench.report.compare import compare as compare_speeds
    from forerun_lab.bench.report.table import draw_comparison

    found = compare_speeds(RunSpeeds.read(before), RunSpeeds.read(after), tolerance=tolerance)
    print_wide(draw_comparison(found))
    if found.num_unpaired:
        say(f"forerun: {found.num_unpaired} rows are in only one of the reports and were left out")
    if found.is_slower:
        print(f"slower: {sum(row.is_slower for row in found.rows)} of {len(found.rows)} rows")
        raise typer.Exit(SLOWER)
    num_known = len(found.rows) - found.num_unknown
    if not num_known:
        raise ConfigError("the runs have too few prompts in common: measure at least five in both")
    unknown = f"; {found.num_unknown} have too few prompts in common" if found.num_unknown else ""
    print(f"not slower beyond noise: {num_known} rows{unknown}")


def parallel_in(summary: "Summary") -> str:
    """The contestant that drafts in parallel; of several, the first.

    Raises:
        ConfigError: several have settings of their own, and none has not.
    """
    kinds = {name: entry.get("drafter") for name, entry in summary.about.get("contestants", {}).items()}
    found = [name for name in summary.contestants if name == "parallel" or kinds.get(name) == "parallel"]
    if len(found) > 1 and "parallel" not in found:
        raise ConfigError(f"--plan is compared with one parallel drafter, the run has {', '.join(found)}")
    return "parallel" if "parallel" in found or not found else found[0]


def speeds_of(summary: "Summary", contestant: str) -> dict[float, float]:
    """Tokens/s over all data sets, by temperature."""
    rows = [row for row in summary.rows if row.dataset is None and row.contestant == contestant]
    return {row.temperature: row.speed.value for row in rows if row.speed is not None}


def has_matplotlib() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None


def print_wide(drawn: Any) -> None:
    """Print what rich draws. The console is widened if the output is not a terminal and so has no width."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, MIN_WIDTH)
    console.print(drawn)


def _write_file(path: Path, text: str) -> None:
    write_whole(path, text, makes_folder=True)
    say(f"wrote {path}")
