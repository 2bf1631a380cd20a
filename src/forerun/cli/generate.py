"""forerun generate: one prompt, one text."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Final

import typer

from forerun.cli.answer import Show, describe_stats, is_terminal, show_plainly, tree_shower, write_answer
from forerun.cli.declare import option, output, with_options
from forerun.cli.drafter_options import DrafterOptions
from forerun.cli.failures import INTERRUPTED, say, shows_errors
from forerun.cli.loading import open_engine
from forerun.cli.options import EngineOptions, SamplingOptions, settle
from forerun.cli.timeline import check_timeline_path, write_timeline
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET, DrafterConfig, Parallel
from forerun.core.errors import ConfigError, require
from forerun.core.pace import read_device
from forerun.core.steps import DecodeStep, Generation
from forerun.core.timing import Span

SAMPLE_PROMPT: Final = 'def read_lines(path):\n    """Return the lines of a text file without their line ends."""'


@shows_errors
@with_options(DrafterOptions, EngineOptions, SamplingOptions)
def generate(
    drafter_options: DrafterOptions,
    engine_options: EngineOptions,
    sampling: SamplingOptions,
    model: Annotated[str, typer.Argument(help="Checkpoint folder or hub name.")] = BUILTIN_TARGET,
    prompt: Annotated[str | None, option("--prompt", "-p", help="The text to continue; else read from stdin.")] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object and nothing else.")] = False,
    show_tree: Annotated[bool, option("--show-tree", help="Colour tokens by who wrote them.")] = False,
    no_stream: Annotated[bool, option("--no-stream", help="Print the text when it is complete.")] = False,
    timeline: Annotated[
        Path | None,
        output("--timeline", help="Draw who worked when: .svg to look at, .json for a trace viewer."),
    ] = None,
) -> None:
    """Continue a text. The text goes to stdout, one line of statistics to stderr."""
    if as_json and show_tree:
        raise ConfigError("--json and --show-tree exclude each other: JSON has no colours")
    drafter = drafter_options.config(model)
    if timeline is not None:
        check_timeline_path(timeline)
        drafter = _traced(drafter)
    config = engine_options.config(model, drafter)
    sampling.params()  # complains before the model is loaded
    text = _read_prompt(prompt, model)
    spans: list[Span] = []
    with open_engine(config) as engine:
        params = settle(sampling, engine.default_sampling)
        if as_json or no_stream:
            stream = engine.stream(text, params)
            spans += [span for step in stream for span in step.stats.spans]
            result, is_interrupted = stream.result(), False
            print(_to_json(result) if as_json else result.text)
        else:
            show = tree_shower(engine.tokenizer) if show_tree else show_plainly
            result, is_interrupted = write_answer(lambda: engine.stream(text, params), _keeping(spans, show))
        if not as_json:
            say(describe_stats(result))
    if timeline is not None:
        _draw(timeline, spans, title=_title(config, result))
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _traced(drafter: DrafterConfig) -> DrafterConfig:
    """The same drafter; one in a process of its own also tells when it was at work."""
    return replace(drafter, trace=True) if isinstance(drafter, Parallel) else drafter


def _keeping(spans: list[Span], show: Show) -> Show:
    """A `Show` that also keeps every step's spans."""

    def show_and_keep(step: DecodeStep) -> None:
        show(step)
        spans.extend(step.stats.spans)

    return show_and_keep


def _draw(path: Path, spans: Sequence[Span], *, title: str) -> None:
    if spans:
        write_timeline(path, spans, title=title)
    else:
        say(f"no timeline was written to {path}: this generation reported no times of target or drafter")


def _title(config: EngineConfig, result: Generation) -> str:
    stats, name = result.stats, Path(config.target).name or config.target
    paced = " · paced" if read_device(config.device).is_paced else ""
    return f"{name} · {stats.tokens_per_s:.1f} tokens/s · {stats.tokens_per_round:.2f} tokens per round{paced}"


def _read_prompt(prompt: str | None, model: str) -> str:
    """The prompt given, else stdin less the newline that ends a piped text, else for the built-in model a sample."""
    require(prompt != "", "the prompt is empty: give at least one character with --prompt")
    if prompt is not None:
        return prompt
    text = "" if is_terminal() else sys.stdin.read().removesuffix("\n")
    if text:
        return text
    if model != BUILTIN_TARGET:
        raise ConfigError("there is no prompt: give one with --prompt, or pipe a text in")
    say(f"no prompt given, so here is a sample one:\n{SAMPLE_PROMPT}")
    return SAMPLE_PROMPT


def _to_json(result: Generation) -> str:
    return json.dumps(
        {
            "text": result.text,
            "token_ids": list(result.token_ids),
            "finish_reason": result.finish_reason.value,
            "seed": result.seed,
            "stats": asdict(result.stats),
        }
    )
