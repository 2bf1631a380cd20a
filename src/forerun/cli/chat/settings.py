"""/set: the settings of sampling by the names of their flags, and the variables of the chat template."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, Final, get_origin, get_type_hints

import typer

from forerun.cli.flag_values import plain_kind, reader_of
from forerun.cli.flags import flagged, option_name
from forerun.cli.options import read_bias
from forerun.core.config import UNTIL_FULL, SamplingParams
from forerun.core.errors import ConfigError

BACK: Final = "default"  # this value restores the one from the start
KINDS: Final = get_type_hints(SamplingParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Sampling parameters, and variables of the chat template.

    Args:
        allowed: the variables that the template uses.
    """

    params: SamplingParams
    variables: Mapping[str, object]
    allowed: frozenset[str]

    def names(self) -> Sequence[str]:
        """Every name that can be set."""
        return [*(option_name(field) for field in flagged(SamplingParams)), *sorted(self.allowed)]

    def listed(self) -> str:
        """Every name with its value."""
        width = max(map(len, self.names()))
        return "\n".join(f"{name:<{width}}  {self.shown(name)}" for name in self.names())

    def shown(self, name: str) -> str:
        """The value of a setting, for a person.

        Raises:
            ConfigError: there is no setting of this name.
        """
        if name in self.allowed:
            return json.dumps(self.variables.get(name), ensure_ascii=False)
        return _shown(_field_of(name), self.params)

    def changed(self, name: str, text: str, *, start: "ChatSettings") -> "ChatSettings":
        """The same with another value of one setting.

        Args:
            start: the settings that the value `default` restores.

        Raises:
            ConfigError: there is no setting of this name, or it cannot have this value.
        """
        if name in self.allowed:
            return replace(self, variables=_with_variable(self.variables, name, text, start.variables))
        field = _field_of(name)
        value = getattr(start.params, field.name) if text == BACK else _value(field, text)
        given: dict[str, Any] = {field.name: value}
        return replace(self, params=replace(self.params, **given))


def _with_variable(
    variables: Mapping[str, object], name: str, text: str, start: Mapping[str, object]
) -> Mapping[str, object]:
    if text != BACK:
        return {**variables, name: _read_json(text)}
    others = {other: value for other, value in variables.items() if other != name}
    return others | {name: start[name]} if name in start else others


def _read_json(text: str) -> object:
    """The value of a text as JSON, such as false; the text itself if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _field_of(name: str) -> Field[Any]:
    """The field of SamplingParams with a flag of this name, in any spelling."""
    spelt = name.lstrip("-").replace("_", "-")
    for field in flagged(SamplingParams):
        if spelt in [flag.lstrip("-") for flag in field.metadata["flags"]]:
            return field
    raise ConfigError(f"there is no setting {name}: /set alone lists them")


def _shown(field: Field[Any], params: SamplingParams) -> str:
    value = getattr(params, field.name)
    match field.name, value:
        case "max_new_tokens", n if n == UNTIL_FULL:
            return "-1 (to the end of the text, or until the context is full)"
        case "seed", None:
            return "a new one for each answer"
        case _, {**biases}:
            return " ".join(f"{token}={bias:g}" for token, bias in biases.items()) or "none"
        case _, tuple():
            return " ".join(map(repr, value)) or "none"
        case _:
            return str(value)


def _value(field: Field[Any], text: str) -> Any:
    """A text as this field's flag reads it."""
    kind = plain_kind(KINDS[field.name])
    if get_origin(kind) is tuple:
        return (text,)
    if get_origin(kind) is Mapping:
        return dict(map(read_bias, text.split()))
    read: Callable[[Any], Any] = reader_of(kind) or str
    try:
        return read(text)
    except typer.BadParameter as error:
        raise ConfigError(f"{field.name} {error.message}") from None
