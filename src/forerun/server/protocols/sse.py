"""JSON objects, and server-sent events as bytes."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Body: TypeAlias = dict[str, Any]
DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": waiting\n\n"  # which clients skip; it keeps a waiting connection open


def data_event(body: Mapping[str, Any]) -> bytes:
    """An event without a name, as in OpenAI's chat.

    Non-ASCII characters are escaped, since some clients split lines at U+2028.
    """
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def named_event(name: str, body: Mapping[str, Any]) -> bytes:
    """An event with a name, which its data repeats as `type`, as in Anthropic's and the Responses API."""
    return f"event: {name}\n".encode() + data_event({"type": name, **body})
