"""How commands declare their flags: several commands can share one dataclass of options."""

import inspect
from collections.abc import Callable, Container
from copy import copy
from dataclasses import Field, dataclass, fields
from functools import wraps
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from forerun.cli.flag_values import flag_kind, metavar_of, plain_kind, read_size, reader_of

T = TypeVar("T")
ENVIRONMENT_PREFIX: Final = "FORERUN_"


def option(*names: str, help: str) -> Any:
    """A flag with its aliases. The environment variable FORERUN_<FLAG>, named after the first, sets its default."""
    return typer.Option(*names, help=help, envvar=variable_of(names[0]), show_envvar=False)


def option_of(config: type[Any], name: str, *, help: str) -> Any:
    """The flag of a config's field, with all its aliases and with another help text."""
    field = next(field for field in flagged(config) if field.name == name)
    return option(*field.metadata["flags"], help=help)


def variable_of(flag: str) -> str:
    """FORERUN_MAX_LENGTH for --max-length; for a switch, the name that turns it on is used."""
    return ENVIRONMENT_PREFIX + flag.partition("/")[0].lstrip("-").replace("-", "_").upper()


def output(*names: str, help: str, metavar: str | None = None) -> Any:
    """A flag for an output. It has no environment variable, or every command would write to the same file."""
    return typer.Option(*names, help=help, metavar=metavar)


def flagged(config: type[Any]) -> list[Field[Any]]:
    """The fields of a config that have a flag."""
    return [field for field in fields(config) if "flags" in field.metadata]


def option_name(field: Field[Any]) -> str:
    """The name of a field's flag in a group of options: draft_device for --draft-device."""
    return str(field.metadata["flags"][0]).partition("/")[0].lstrip("-").replace("-", "_")


def with_flags_of(
    *configs: type[Any], panel: str | None = None, only: Container[str] | None = None, shown: Container[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Make a class a group of options: its own fields, and the flags of these configs, which are None if not given.

    Args:
        panel: the heading of its flags in the help.
        only: the fields whose flags are wanted; None: all.
        shown: fields whose defaults the help shows.
    """

    def decorate(group: Any) -> Any:
        group.PANEL = panel
        for config in configs:
            kinds = get_type_hints(config)
            for field in flagged(config):
                if only is not None and field.name not in only:
                    continue
                info = option(*field.metadata["flags"], help=field.metadata["help"])
                if field.name.endswith("_bytes"):
                    info.parser = read_size
                    info.metavar = "SIZE"
                if field.name in shown:
                    info.show_default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
                if option_name(field) not in group.__annotations__:
                    group.__annotations__[option_name(field)] = Annotated[flag_kind(kinds[field.name]), info]
                    setattr(group, option_name(field), None)
        return dataclass(frozen=True, kw_only=True)(group)

    return decorate


def given_settings(config: type[Any], options: Any) -> dict[str, Any]:
    """The fields of a config whose flags were given, with their values."""
    names = {field.name: option_name(field) for field in flagged(config)}
    return {name: value for name, option in names.items() if (value := getattr(options, option, None)) is not None}


def with_options(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of these dataclasses as flags; it receives one instance per group, by position.

    The command's own parameters follow the groups and come first on the command line.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command, eval_str=True).parameters.values()
        own = [item for item in parameters if get_origin(item.annotation) is Annotated]

        @wraps(command)
        def call(**given: Any) -> None:
            values = [group(**{field.name: given.pop(field.name) for field in fields(group)}) for group in groups]
            command(*values, **given)

        _set_parameters(call, [*own, *(parameter for group in groups for parameter in _parameters(group))])
        return call

    return decorate


def with_readers(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command parse the values of its flags by their types, as `values` does."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    _set_parameters(command, [item.replace(annotation=_with_reader(item.annotation)) for item in parameters])
    return command


def _with_reader(annotation: Any) -> Any:
    kind, info = get_args(annotation)
    info = copy(info)
    info.parser = info.parser or reader_of(plain_kind(kind))
    if isinstance(info, OptionInfo):
        info.metavar = info.metavar or metavar_of(plain_kind(kind))
    return Annotated[kind, info]


def _set_parameters(call: Any, parameters: list[inspect.Parameter]) -> None:
    call.__signature__ = inspect.Signature(parameters)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    parameters = []
    for field in fields(group):
        kind, info = get_args(hints[field.name])
        info = copy(info)  # groups may share a flag
        info.rich_help_panel = info.rich_help_panel or group.PANEL
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[kind, info],
            )
        )
    return parameters
