"""Which replica answers a conversation: the one that has it warm, unless others are far less busy."""

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final

MAX_REMEMBERED: Final = 16384  # conversations, the least recently used one is forgotten; about 3 MB
MAX_BEHIND: Final = 2  # requests that a conversation waits for, more than it would elsewhere, before it moves


class Homes:
    """The replica of every conversation.

    A new conversation goes where the least is to be done, since no replica knows it: were its name's hash to decide,
    two conversations would often share a replica while another has nothing to do. Among equals, and for a conversation
    that was forgotten, the hash does decide, and gives the same replica as long as it is there (rendezvous hashing,
    Thaler and Ravishankar, 1996).
    """

    def __init__(self) -> None:
        self._homes: OrderedDict[str, int] = OrderedDict()

    def choose(self, session: str, num_open: Mapping[int, int]) -> int:
        """The replica for a conversation's next request, which is its home from now on.

        Args:
            num_open: requests that each replica works on or has waiting; those that cannot be asked are left out.
        """
        least = min(num_open.values())
        home = self._homes.get(session)
        if home is None or num_open.get(home, least + MAX_BEHIND) >= least + MAX_BEHIND:
            home = by_hash(session, [index for index, number in num_open.items() if number == least])
        self._homes[session] = home
        self._homes.move_to_end(session)
        if len(self._homes) > MAX_REMEMBERED:
            self._homes.popitem(last=False)
        return home


def by_hash(session: str, replicas: Collection[int]) -> int:
    """One of them, always the same while it is among them."""
    return max(replicas, key=lambda index: hashlib.sha256(f"{session} {index}".encode()).digest())
