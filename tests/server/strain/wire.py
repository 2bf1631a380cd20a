"""HTTP by hand, for requests that no client would send and for many of them at once."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

TELLING = re.compile(rb'Traceback|File "|/[a-z]+/[a-z]+/|0x[0-9a-f]{6,}|\.py\b')  # what no body may hold
ANSWER_S = 60.0
Address = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Line:
    """A connection that is kept for the next request, and opened anew where it was closed."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes, *, headers: bytes = b"") -> Answer:
        """The answer to a JSON body; tried once more where the connection had been closed meanwhile."""
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
        return await self.send(head % (path.encode(), len(body), headers) + body)

    async def get(self, path: str) -> Answer:
        return await self.send(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())

    async def send(self, request: bytes) -> Answer:
        is_kept = self._writer is not None
        try:
            return await self._once(request)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            if not is_kept:
                raise
            return await self._once(request)

    async def _once(self, request: bytes) -> Answer:
        async with asyncio.timeout(ANSWER_S):
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(*self._address)
            assert self._reader is not None
            self._writer.write(request)
            await self._writer.drain()
            answer = await read_answer(self._reader)
        if answer.headers.get(b"connection") == b"close":
            self.close()
        return answer

    def close(self) -> None:
        """Hang up at once, whatever is still to come."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer on a connection.

    Raises:
        asyncio.IncompleteReadError: it ended before.
    """
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    status = int(first.split()[1])
    if headers.get(b"transfer-encoding") == b"chunked":
        return Answer(status=status, headers=headers, body=await read_chunks(reader))
    return Answer(
        status=status, headers=headers, body=await reader.readexactly(int(headers.get(b"content-length", b"0")))
    )


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return body


@dataclass(kw_only=True)
class Outcome:
    """What a part found: numbers by name, and what was wrong in words."""

    figures: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def count(self, name: str, number: float = 1) -> None:
        self.figures[name] = self.figures.get(name, 0) + number

    def require(self, holds: bool, fault: str) -> None:
        if not holds:
            self.faults.append(fault)


async def side_by_side(num_workers: int, work: Callable[[int], Awaitable[None]]) -> None:
    """Run this so often at once, each with its number; an error of one ends all."""
    async with asyncio.TaskGroup() as group:
        for number in range(num_workers):
            group.create_task(work(number))  # type: ignore[arg-type]


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
