"""How commands declare their flags: one dataclass of options may serve several commands."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, Final, get_type_hints

import typer

ENVIRONMENT_PREFIX: Final = "FORERUN_"


def option(*names: str, help: str, panel: str | None = None) -> Any:
    """A flag with its aliases. The environment variable FORERUN_<FLAG>, after the first name, gives its default."""
    variable = ENVIRONMENT_PREFIX + names[0].partition("/")[0].lstrip("-").replace("-", "_").upper()
    return typer.Option(*names, help=help, envvar=variable, show_envvar=False, rich_help_panel=panel)


def with_options(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of these dataclasses as flags; it receives one instance per group, by position.

    The command's own parameters follow the groups and come first on the command line.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[len(groups) :]

        @wraps(command)
        def call(**given: Any) -> None:
            values = [group(**{field.name: given.pop(field.name) for field in fields(group)}) for group in groups]
            command(*values, **given)

        parameters = [*own, *(parameter for group in groups for parameter in _parameters(group))]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
