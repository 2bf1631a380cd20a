"""Notices that the head node of Ray is lost."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from forerun.core.errors import ForerunError

logger = logging.getLogger(__name__)

ASK_EVERY_S: Final = 1.0
PATIENCE_S: Final = 5.0  # for a connection
SILENT_S: Final = 5.0  # without the head node until the log says so
GONE_S: Final = 45.0  # until the front ends; after a minute Ray itself would end its process


class RayGoneError(ForerunError):
    """The head node of Ray no longer answers."""


async def watch_head(address: str, *, on_end: Callable[[BaseException], None]) -> None:
    """Say if the head node is lost, and call `on_end` with the error if it stays away."""
    clock = asyncio.get_running_loop().time
    is_told = False
    heard_s = clock()
    while (silent_s := clock() - heard_s) < GONE_S:
        if await listens(address):
            heard_s = clock()
            is_told = False
        elif silent_s > SILENT_S and not is_told:
            is_told = True
            logger.warning(
                "the head node of Ray (%s) does not answer: replicas that run go on, none is started, and this server "
                "ends after %g s without an answer",
                address,
                GONE_S,
            )
        await asyncio.sleep(ASK_EVERY_S)
    advice = "start it again, then this server"
    on_end(RayGoneError(f"the head node of Ray ({address}) has not answered for {GONE_S:g} s: {advice}"))


async def listens(address: str) -> bool:
    """Whether a process accepts connections at this address."""
    host, _, port = address.rpartition(":")
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.close()
            return True
    return False
