"""An answer as JSON: one object, or one object per step and then one for the whole answer."""

import json
from dataclasses import asdict
from typing import Any

from forerun.cli.about import About
from forerun.core.steps import DecodeStep, Generation


def show_nothing(step: DecodeStep) -> None:
    """Print nothing yet: the text is printed when it is complete."""


def print_step(step: DecodeStep) -> None:
    """Print the step as a line with `done` false; the line of the whole answer follows with `done` true."""
    _print({"done": False, "text": step.text, "token_ids": list(step.token_ids)})


def print_answer(result: Generation, about: About) -> None:
    _print(
        {
            "done": True,
            "text": result.text,
            "token_ids": list(result.token_ids),
            "finish_reason": result.finish_reason.value,
            "seed": result.seed,
            "stats": asdict(result.stats),
            "engine": about.to_dict(),
        }
    )


def _print(values: dict[str, Any]) -> None:
    print(json.dumps(values), flush=True)
