"""Server-sent events as OpenAI has them: one for each verified round."""

import json
from collections.abc import Mapping
from typing import Any, Final

from forerun.server.protocol.errors import ApiError

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": waiting\n\n"
CHAT, TEXT = "chat.completion.chunk", "text_completion"


class EventWriter:
    """Events of one answer.

    Args:
        kind: CHAT or TEXT.
        about: what all of them have, such as id, time and model.
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
            delta: what the message gains, of a chat; else {"text": ...}.
            roots: keys beside OpenAI's.
        """
        said: dict[str, Any] = {"delta": delta} if self._is_chat else {"text": delta.get("text", "")}
        return self.event([{"index": index, **said, "logprobs": logprobs, "finish_reason": finish}], **roots)

    def event(self, choices: list[dict[str, Any]], **roots: Any) -> bytes:
        """An event with these choices. All beyond ASCII is escaped: some clients end lines at U+2028 too."""
        rest = json.dumps({"choices": choices, **roots})
        return f"{self._head}, {rest[1:]}\n\n".encode()


def error_event(error: ApiError, request_id: str) -> bytes:
    """What ends a stream that was begun."""
    return b"data: " + error.json(request_id) + b"\n\n"
