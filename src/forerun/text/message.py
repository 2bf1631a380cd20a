"""One message of a conversation, as programs give it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from forerun.core.errors import ConfigError
from forerun.core.json_file import short

Message: TypeAlias = Mapping[str, Any]


def plain_message(message: object) -> Message:
    """A message with text as content and without keys whose value is None. Only in a message with tool calls, content
    may be None, because some templates require that.
    """
    if not isinstance(message, Mapping):
        raise ConfigError(f"a chat message is {short(message)}: give a mapping with role and content")
    has_calls = bool(message.get("tool_calls"))
    known = {key: value for key, value in message.items() if value is not None or (has_calls and key == "content")}
    content = known.get("content", "")
    if content is None or isinstance(content, str):
        return known
    if not isinstance(content, Sequence):
        raise ConfigError(f"the content of a chat message is {short(content)}: give a text, or a list of text parts")
    return {**known, "content": "\n".join(map(_text_of, content))}


def _text_of(part: object) -> str:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
            "type": "refusal",
            "refusal": str(text),
        }:
            return text
        case _:
            raise ConfigError(
                f'a part of a chat message is {short(part)}: only {{"type": "text", "text": ...}} can be read, since '
                "these models read only text"
            )
