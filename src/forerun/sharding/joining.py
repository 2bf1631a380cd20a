"""Connect ranks of other hosts with their leader."""

import logging
import socket
from contextlib import closing
from time import monotonic, sleep
from typing import Final

from forerun.core.errors import DrafterUnreachableError, RankLostError
from forerun.wires.endpoint import Address, Admission, connect, listen

JOIN_S: Final = 600.0  # time for the other side to start: users start hosts by hand, one after another
LOOKS_EVERY_S: Final = 0.5
HANDSHAKE_S: Final = 5.0

logger = logging.getLogger(__name__)


def admit_ranks(address: Address, key: bytes | None, num_ranks: int) -> list[socket.socket]:
    """The control sockets of `num_ranks` ranks of other hosts, in the order in which they connect.

    Raises:
        ConfigError: it is impossible to listen on the address.
        RankLostError: not all ranks connect in time.
    """
    found: list[socket.socket] = []
    deadline = monotonic() + JOIN_S
    with listen(address, key) as listener, closing(Admission(listener, key, handshake_s=HANDSHAKE_S)) as admission:
        here = Address(server=address.server, port=listener.getsockname()[1])
        advice = f"run on their hosts: forerun worker MODEL --role target --join {here}, with the same key file"
        logger.warning("waiting for %d ranks of other hosts; %s", num_ranks, advice)
        while len(found) < num_ranks:
            if monotonic() > deadline:
                raise RankLostError(f"{len(found)} of {num_ranks} ranks joined {here} within {JOIN_S:g} s: {advice}")
            come = admission.accept(LOOKS_EVERY_S)
            found += [] if come is None else [come]
    return found


def join_leader(address: Address, key: bytes | None) -> socket.socket:
    """A control socket to the leader at this address; waits until it listens.

    Raises:
        RankLostError: the leader does not listen in time.
    """
    deadline = monotonic() + JOIN_S
    said = ""
    while True:
        try:
            control = connect(address, key, HANDSHAKE_S, peer="leader")
        except DrafterUnreachableError as error:
            if monotonic() > deadline:
                raise RankLostError(str(error)) from None
            if str(error) != said:
                logger.warning("%s; this rank waits for it", error)
            said = str(error)
            sleep(LOOKS_EVERY_S)
        else:
            control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return control
