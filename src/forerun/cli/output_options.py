"""The flags that choose how answers are printed."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Annotated

from forerun.cli.about import About
from forerun.cli.answer import End, Show, end_text, show_plainly
from forerun.cli.answer_statistics import all_numbers, short_numbers
from forerun.cli.flags import option, with_flags_of
from forerun.cli.logs import note
from forerun.cli.tree_log import TreeLog
from forerun.core.drafter_config import DrafterConfig
from forerun.core.errors import ConfigError
from forerun.core.steps import DecodeStep, Generation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine

logger = logging.getLogger(__name__)


@with_flags_of(panel="Output")
class OutputOptions:
    """Print streamed text, draft trees, the whole text at once, or JSON."""

    as_json: Annotated[bool, option("--json", help="Print one JSON object per answer and nothing else.")] = False
    json_lines: Annotated[
        bool, option("--json-lines", help="Print a JSON object per step, and --json's at the end.")
    ] = False
    show_tree: Annotated[bool, option("--show-tree", help="On a terminal, draw every round's draft tree.")] = False
    no_stream: Annotated[bool, option("--no-stream", help="Print the text when it is complete.")] = False
    stats: Annotated[bool, option("--stats", help="Print all statistics after every answer.")] = False

    def __post_init__(self) -> None:
        forms = ("--json", "--json-lines", "--show-tree")
        chosen = list(compress(forms, (self.as_json, self.json_lines, self.show_tree)))
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(chosen)} cannot be used together: choose one form of output")

    @property
    def is_json(self) -> bool:
        return self.as_json or self.json_lines

    def start_display(self, engine: "Engine") -> tuple[Callable[[], Show], End]:
        """Print a description of the engine; return the functions that start and end the display of an answer."""
        about = About.of(engine)
        if self.is_json:
            return lambda: print_step if self.json_lines else show_nothing, partial(print_answer, about=about)
        note(str(about))
        if self.no_stream:
            return lambda: show_nothing, lambda result, _: end_text(result, "")
        if self.show_tree and not sys.stdout.isatty():
            logger.warning("--show-tree needs a terminal, which stdout is not: only the text is printed")
        elif self.show_tree:
            log = TreeLog(engine.tokenizer)
            return log.start_answer, log.end
        return lambda: show_plainly, end_text

    def note_numbers(self, result: Generation, drafter: DrafterConfig, *, is_greedy: bool) -> None:
        """Print the line of statistics, unless the output is JSON, which contains them."""
        if not self.is_json:
            note(all_numbers(result, drafter, is_greedy=is_greedy) if self.stats else short_numbers(result, drafter))


def show_nothing(step: DecodeStep) -> None:
    """Print nothing yet: the text is printed when it is complete."""


def print_step(step: DecodeStep) -> None:
    """Print the step as a line with `done` false; the line of the whole answer follows with `done` true."""
    values = {"done": False, "text": step.text, "token_ids": list(step.token_ids), "stats": step.stats.numbers()}
    print(json.dumps(values), flush=True)


def print_answer(result: Generation, shown: str, *, about: About) -> None:
    """Print the whole answer as one line; no part of it was shown before."""
    values = {
        "done": True,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason.value,
        "seed": result.seed,
        "stats": asdict(result.stats),
        "engine": asdict(about),
    }
    print(json.dumps(values), flush=True)
