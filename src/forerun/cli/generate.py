"""forerun generate: one prompt, one text."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Final

import typer

from forerun.cli.answer import is_terminal, say_stats, show_plainly, tree_shower, write_answer
from forerun.cli.declare import option, with_options
from forerun.cli.failures import INTERRUPTED, say, shows_errors
from forerun.cli.loading import open_engine
from forerun.cli.options import EngineOptions, SamplingOptions
from forerun.core.config import BUILTIN_TARGET
from forerun.core.errors import ConfigError
from forerun.core.steps import Generation

SAMPLE_PROMPT: Final = 'def read_lines(path):\n    """Return the lines of a text file without their line ends."""'


@shows_errors
@with_options(EngineOptions, SamplingOptions)
def generate(
    engine_options: EngineOptions,
    sampling: SamplingOptions,
    model: Annotated[str, typer.Argument(help="Checkpoint folder or hub name.")] = BUILTIN_TARGET,
    prompt: Annotated[str | None, option("--prompt", "-p", help="The text to continue; else read from stdin.")] = None,
    as_json: Annotated[bool, option("--json", help="Print one JSON object and nothing else.")] = False,
    show_tree: Annotated[bool, option("--show-tree", help="Colour tokens by who wrote them.")] = False,
    no_stream: Annotated[bool, option("--no-stream", help="Print the text when it is complete.")] = False,
) -> None:
    """Continue a text. The text goes to stdout, one line of statistics to stderr."""
    if as_json and show_tree:
        raise ConfigError("--json and --show-tree exclude each other: JSON has no colours")
    config, params = engine_options.config(model), sampling.params()
    text = _read_prompt(prompt, model)
    with open_engine(config) as engine:
        if as_json or no_stream:
            result = engine.generate(text, params)
            print(_to_json(result) if as_json else result.text)
            is_interrupted = False
        else:
            show = tree_shower(engine.tokenizer) if show_tree else show_plainly
            result, is_interrupted = write_answer(lambda: engine.stream(text, params), show)
        if not as_json:
            say_stats(result, engine)
    if is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _read_prompt(prompt: str | None, model: str) -> str:
    """The prompt given, else stdin, else for the built-in model a sample."""
    if prompt is not None:
        return prompt
    text = "" if is_terminal() else sys.stdin.read()
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
