"""Finds a request's conversation, and chooses its replica: the one that has it in its cache, unless others are far
less busy.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any, Final

from forerun.core.errors import ForerunError
from forerun.server.guard.strict_json import read_json

MAX_REMEMBERED: Final = 16384  # conversations, about 3 MB; the least recently used are dropped
MAX_BEHIND: Final = 2  # a conversation moves once its replica has this many more open requests than the least busy one
SESSION_HEADER: Final = b"x-session-id"
SESSION_FIELD: Final = "prompt_cache_key"  # OpenAI's name for it
MAX_NAME_BYTES: Final = 256  # of a name from a client; longer ones are truncated
MAX_BEGINNING: Final = 256  # characters or token ids of a prompt that identify its conversation


class Homes:
    """The replica of every conversation.

    If there is one front, a conversation that it does not know is in no replica's cache, so it goes to the least busy
    one. Choosing only by a hash of its name would often put two conversations on one replica while another is idle. The
    hash decides only between equally busy replicas, and so a conversation that was dropped from this table usually gets
    the same replica again (rendezvous hashing, Thaler and Ravishankar, 1996).

    With several fronts, another front may know the conversation, so only the hash chooses its replica, and only moved
    conversations are remembered.

    Args:
        are_shared: other fronts may use the replicas.
    """

    def __init__(self, *, are_shared: bool = False) -> None:
        self._homes: OrderedDict[str, int] = OrderedDict()
        self._are_shared = are_shared

    def choose(self, session: str, num_open: Mapping[int, int]) -> int:
        """The replica for a conversation's next request, which is remembered for later ones.

        Args:
            num_open: open requests of each available replica, running or waiting.
        """
        least = min(num_open.values())
        home = self._homes.get(session)
        if home is None and self._are_shared:
            home = by_hash(session, num_open)
            if num_open[home] < least + MAX_BEHIND:
                return home
        if home is None or num_open.get(home, least + MAX_BEHIND) >= least + MAX_BEHIND:
            home = by_hash(session, [index for index, number in num_open.items() if number == least])
        self._homes[session] = home
        self._homes.move_to_end(session)
        if len(self._homes) > MAX_REMEMBERED:
            self._homes.popitem(last=False)
        return home


def by_hash(session: str, replicas: Collection[int]) -> int:
    """One of the replicas by rendezvous hashing: the same one for a session as long as it is among them."""
    return max(replicas, key=lambda index: hashlib.sha256(f"{session} {index}".encode()).digest())


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
