"""Server-sent events in OpenAI's format, one per verified round."""

import json
from collections.abc import Mapping
from typing import Any, Final

from forerun.server.protocols.errors import ApiError

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": waiting\n\n"
CHAT, TEXT = "chat.completion.chunk", "text_completion"


class EventWriter:
    """Writes the events of one answer.

    Args:
        kind: CHAT or TEXT.
        about: fields that all events have, such as id, time and model.
    """

    def __init__(self, kind: str, about: Mapping[str, Any]) -> None:
        self._head = "data: " + json.dumps({"object": kind, **about})[:-1]
        self._is_chat = kind == CHAT

    def piece(
        self,
        index: int,
        delta: dict[str, str],
        finish: str | None = None,
        *,
        logprobs: dict[str, Any] | None = None,
        **roots: Any,
    ) -> bytes:
        """An event with a piece of a text.

        Args:
            delta: for a chat the message's delta, else {"text": ...}.
            roots: further top-level keys of the event.
        """
        said: dict[str, Any] = {"delta": delta} if self._is_chat else {"text": delta.get("text", "")}
        return self.event([{"index": index, **said, "logprobs": logprobs, "finish_reason": finish}], **roots)

    def event(self, choices: list[dict[str, Any]], **roots: Any) -> bytes:
        """An event with these choices. Non-ASCII characters are escaped, since some clients split lines at U+2028."""
        rest = json.dumps({"choices": choices, **roots})
        return f"{self._head}, {rest[1:]}\n\n".encode()


def error_event(error: ApiError, request_id: str) -> bytes:
    """An error event, which ends a stream that has already begun."""
    return b"data: " + error.json(request_id) + b"\n\n"
