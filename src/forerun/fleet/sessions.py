"""Finds a request's conversation, so that it goes to the replica that has already read most of its prompt."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from forerun.core.errors import ForerunError
from forerun.server.guard.strict_json import read_json

SESSION_HEADER: Final = b"x-session-id"
SESSION_FIELD: Final = "prompt_cache_key"  # OpenAI's name for it
MAX_NAME_BYTES: Final = 256  # of a name from a client; longer ones are truncated
MAX_BEGINNING: Final = 256  # characters or token ids of a prompt that identify its conversation


def session_of(owner: str, headers: Mapping[bytes, bytes], body: bytes, *, max_json_depth: int) -> str:
    """A name for the conversation: a hash of the client's name for it, else of its beginning, which every turn repeats.

    Conversations of different keys never have the same name. An invalid request gets some name too; a replica refuses
    it later.
    """
    named = headers.get(SESSION_HEADER, b"")[:MAX_NAME_BYTES]
    name = b"named " + named if named else _from_body(body, max_json_depth)
    return hashlib.sha256(owner.encode() + b"\0" + name).hexdigest()


def _from_body(body: bytes, max_json_depth: int) -> bytes:
    try:
        asked = read_json(body, max_depth=max_json_depth)
    except ForerunError:
        return b""
    if not isinstance(asked, dict):
        return b""
    named = asked.get(SESSION_FIELD)
    if isinstance(named, str) and named:
        return b"named " + named.encode()[:MAX_NAME_BYTES]
    return json.dumps(beginning_of(asked)).encode()


def beginning_of(asked: Mapping[str, Any]) -> Any:
    """The messages up to the user's first one, or the first part of the prompt."""
    messages = asked.get("messages", asked.get("input"))
    if isinstance(messages, list):
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        return messages[: roles.index("user") + 1] if "user" in roles else messages[:1]
    prompt = asked.get("prompt", messages)
    first = prompt[0] if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else prompt
    return first[:MAX_BEGINNING] if isinstance(first, str | list) else None
