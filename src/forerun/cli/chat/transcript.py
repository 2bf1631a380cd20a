"""A conversation as a file: its turns, the settings, and the model that answered."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from forerun.core.config import SamplingParams
from forerun.core.errors import CheckpointError, ConfigError
from forerun.core.grammar import Grammar
from forerun.core.json_file import short
from forerun.core.kept_files import KeptFiles
from forerun.text.conversation import Exchange

FORMAT: Final = "forerun conversation, version 1"
MAX_BYTES: Final = 2**26  # a context of a million tokens is 5 MB of text
STOPPED: Final = "stopped"  # true for an answer that the user stopped before its end, else left out
KEYS: Final = ("format", "model", "identity", "settings", "template_variables", "num_dropped_turns", "messages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The part of a conversation that is saved.

    Args:
        model, identity: the model's name, and the identity of its files.
        variables: the variables of the chat template.
        num_dropped: number of the oldest turns, which are not sent to the model any more.
    """

    model: str
    identity: str
    params: SamplingParams
    variables: Mapping[str, object]
    system_prompt: str | None
    turns: tuple[Exchange, ...]
    num_dropped: int

    def to_json(self) -> str:
        """A file's contents."""
        messages: list[dict[str, object]] = []
        if self.system_prompt is not None:
            messages.append({"role": "system", "content": self.system_prompt})
        for turn in self.turns:
            stopped = {STOPPED: True} if turn.is_stopped else {}
            messages.append({"role": "user", "content": turn.said})
            messages.append({"role": "assistant", "content": turn.answer, **stopped})
        values = {
            "format": FORMAT,
            "model": self.model,
            "identity": self.identity,
            "settings": asdict(self.params),
            "template_variables": dict(self.variables),
            "num_dropped_turns": self.num_dropped,
            "messages": messages,
        }
        return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def read_transcript(path: Path, files: KeptFiles) -> Transcript:
    """The conversation in a file.

    Raises:
        ConfigError: the file cannot be read, or is not a valid conversation; the message says what is wrong with it.
    """
    try:
        values = json.loads(files.read(path))
        json.dumps(values, ensure_ascii=False).encode()  # fails for half a surrogate pair
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): name a file with a conversation") from error
    except (ValueError, RecursionError, CheckpointError) as error:
        _refuse(path, f"it is not valid JSON ({error})")
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        _refuse(path, f"its format is not {FORMAT!r}")
    if set(values) != set(KEYS):
        _refuse(path, f"it must hold the keys {', '.join(KEYS)}, not {', '.join(map(short, sorted(values)))}")
    system, turns = _turns_of(path, values["messages"])
    num_dropped = values["num_dropped_turns"]
    if type(num_dropped) is not int or not 0 <= num_dropped <= len(turns):
        _refuse(path, f"num_dropped_turns is {short(num_dropped)}, but must be a number of turns, of {len(turns)}")
    return Transcript(
        model=_text(path, "model", values["model"]),
        identity=_text(path, "identity", values["identity"]),
        params=_params_of(path, values["settings"]),
        variables=_object(path, "template_variables", values["template_variables"]),
        system_prompt=system,
        turns=turns,
        num_dropped=num_dropped,
    )


def _turns_of(path: Path, messages: object) -> tuple[str | None, tuple[Exchange, ...]]:
    """The system prompt and the turns of messages, which user and assistant wrote in turn."""
    if not isinstance(messages, list):
        _refuse(path, f"messages is {short(messages)}, but must be a list")
    contents = [_content(path, message, number) for number, message in enumerate(messages)]
    has_system = bool(messages) and messages[0]["role"] == "system"
    roles = [message["role"] for message in messages[has_system:]]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        _refuse(path, f"the roles of its messages are {short(roles)}, but must be user and assistant in turn")
    turns = [
        Exchange(said=contents[place - 1], answer=contents[place], is_stopped=STOPPED in messages[place])
        for place in range(has_system + 1, len(messages), 2)
    ]
    return contents[0] if has_system else None, tuple(turns)


def _content(path: Path, message: object, number: int) -> str:
    match message:
        case {"role": str(role), "content": str(content), **others}:
            if not others or (role == "assistant" and others == {STOPPED: True}):
                return content
    _refuse(path, f"message {number} is {short(message)}, but must hold only a role and a content, both texts")


def _params_of(path: Path, settings: object) -> SamplingParams:
    values = _object(path, "settings", settings)
    unknown = set(values) - {field.name for field in fields(SamplingParams)}
    if unknown:
        _refuse(path, f"settings holds {short(min(unknown))}, which is not a setting")
    try:
        biases = _object(path, "logit_bias", values.get("logit_bias", {}))
        if (grammar := values.get("grammar")) is not None:
            values = {**values, "grammar": Grammar(**_object(path, "grammar", grammar))}
        return SamplingParams(**{**values, "logit_bias": {int(token): bias for token, bias in biases.items()}})
    except (ConfigError, TypeError, ValueError) as error:
        _refuse(path, f"settings: {error}")


def _object(path: Path, name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse(path, f"{name} is {short(value)}, but must be an object")
    return value


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str):
        _refuse(path, f"{name} is {short(value)}, but must be a text")
    return value


def _refuse(path: Path, fault: str) -> NoReturn:
    raise ConfigError(f"{path} cannot be continued as a conversation: {fault}; name another file")
