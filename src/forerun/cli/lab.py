"""The commands of forerun_lab, which is imported only if one of them is used."""

from functools import cached_property
from importlib import import_module
from typing import Any, Final

import typer

from forerun.cli.command_classes import PlainGroup, add_command

# name: the first sentence of its help, and the module with a function or a group of commands of that name
LAB_COMMANDS: Final = {
    "plan": (
        "Simulate every way to divide a machine between target and draft, and rank them by expected speed.",
        "forerun_lab.cli.plan",
    ),
    "prepare": (
        "Pack weights in 4 bits (--quantize awq), divide them among ranks (--target-ranks), or find sublayers to skip "
        "(--layer-skip).",
        "forerun_lab.cli.prepare",
    ),
    "distill": (
        "Train a small draft model for a target, on text that the target writes.",
        "forerun_lab.cli.distill",
    ),
    "perplexity": (
        "Show how well a model predicts a text: its perplexity as llama-perplexity defines it, and the standard error.",
        "forerun_lab.cli.perplexity",
    ),
    "bench": (
        "Measure drafters and other engines side by side, and report the results.",
        "forerun_lab.cli.bench",
    ),
}


class LabCommand:
    """A command whose name and line in the list of commands are known; the rest is read when it is first asked for."""

    hidden = False

    def __init__(self, name: str, short_help: str, module: str) -> None:
        self.name = name
        self.short_help = short_help
        self._module = module

    @cached_property
    def _command(self) -> Any:
        app = getattr(import_module(self._module), self.name)
        if not isinstance(app, typer.Typer):
            command = app
            app = typer.Typer(add_completion=False)
            add_command(app, command)
        return typer.main.get_command(app)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._command, name)


class WholeGroup(PlainGroup):
    """The outermost group: the commands that were added to it, and then those of the lab."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (short_help, module) in LAB_COMMANDS.items():
            self.commands[name] = LabCommand(name, short_help, module)  # type: ignore[assignment]
