"""Chooses the replica for a conversation: the one that has it in its cache, unless others are far less busy."""

import hashlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final

MAX_REMEMBERED: Final = 16384  # conversations, about 3 MB; the least recently used are dropped
MAX_BEHIND: Final = 2  # a conversation moves once its replica has this many more open requests than the least busy one


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
