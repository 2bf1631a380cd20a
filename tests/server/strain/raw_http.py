"""Bytes that are almost HTTP. Each connection gets answers of the right kind or an end, and the server lives on."""

import asyncio
import json
import random
import re
from contextlib import suppress
from typing import Final

from tests.server.strain.wire import TELLING, Address, Line, Outcome, side_by_side

BODY: Final = json.dumps({"prompt": "def", "max_tokens": 1}).encode()
HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SEEDS: Final = (
    b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nhost: localhost\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\norigin: http://localhost\r\n\r\n",
    HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY,
    HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
    HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY,
)  # fmt: skip
LENGTHS: Final = (b"5", b"-1", b"99999999999999999999999", b"0x5", b"5, 5", b"+5", b"1_0", b"")
CODINGS: Final = (b"chunked", b"gzip, chunked", b"\x0bchunked", b"identity")
SNIPPETS: Final = (
    *(b"content-length: %b\r\n" % length for length in LENGTHS),
    *(b"transfer-encoding: %b\r\n" % coding for coding in CODINGS),
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b"\xff\xfe", b"\r\n\r\n", b"\r\n folded", b"HTTP/9.9",
    b"PRI * HTTP/2.0", b"host: evil.example\r\n", b"host:\r\n", b"x: " + b"y" * 20_000 + b"\r\n", b"x: y\r\n" * 3000,
    b"connection: upgrade\r\nupgrade: websocket\r\n", b"upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
    b"expect: 100-continue\r\n", b"expect: x\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"5;a=b\r\n",
    b"0\r\nx: y\r\n\r\n",
    b"authorization: Bearer \xe9\r\n", b"x-request-id: a\x01b\r\n", b"/" * 5000, b"http://evil.example/", b"/%00",
    b"/../../etc/passwd", b"/%2e%2e/", b"//evil.example/", b"?" + b"a=b&" * 50, b"GET", b"get", b"CONNECT", b"TRACE",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"EHLO x\r\n", b"*1\r\n$4\r\nPING\r\n",
)  # fmt: skip
STATUS: Final = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)
NUM_LINES: Final = 24
WAIT_S: Final = 0.05  # for an answer to bytes that may be half a request; then the client goes away
ANSWER_S: Final = 30.0  # for the end of what was sent whole and with the client's last word
MAX_SHOWN: Final = 20


def make(rng: random.Random) -> bytes:
    """A request, or two in one, changed in one to six places."""
    sent = rng.choice(SEEDS) + (rng.choice(SEEDS) if rng.random() < 0.2 else b"")
    for _ in range(rng.choice((1, 1, 2, 3, 6))):
        begin = rng.randrange(len(sent) + 1)
        end = min(len(sent), begin + rng.choice((0, 1, 1, 4, 20)))
        match rng.randrange(5):
            case 0:
                sent = sent[:begin] + bytes((rng.randrange(256),)) + sent[begin + 1 :]
            case 1:
                sent = sent[:begin] + sent[end:]
            case 2:
                sent = sent[:begin] + rng.choice(SNIPPETS) + sent[end:]
            case 3:
                lines = sent.split(b"\r\n")
                lines.insert(rng.randrange(len(lines)), rng.choice(SNIPPETS).removesuffix(b"\r\n"))
                sent = b"\r\n".join(lines)
            case _:
                sent = sent[:end] + sent[begin:]
    return sent or b"\x00"


async def converse(address: Address, sent: bytes, rng: random.Random) -> bytes:
    """All that comes back. In half of the talks the client ends its side, and the server must end its own.

    Raises:
        TimeoutError: it did not.
    """
    reader, writer = await asyncio.open_connection(*address)
    received = b""
    try:
        cut = rng.randrange(len(sent) + 1) if rng.random() < 0.3 else len(sent)
        for part in (sent[:cut], sent[cut:]):
            writer.write(part)
            await writer.drain()
        if rng.random() < 0.5:
            writer.write_eof()
            async with asyncio.timeout(ANSWER_S):
                return await reader.read()
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                while more := await reader.read(65536):
                    received += more
    except OSError:
        pass  # the server ended it, as it may
    finally:
        writer.transport.abort()
    return received


def fault_of(received: bytes) -> str | None:
    """What is wrong with what came back; None where nothing is."""
    codes = [int(code) for code in STATUS.findall(received)]
    if any(code >= 500 and code != 503 for code in codes):
        return f"status {max(codes)}"
    if received and not received.startswith(b"HTTP/1.1 "):
        return "an answer that is no HTTP"
    if codes and min(codes) >= 400 and TELLING.search(received):
        return "an answer that tells of the inside"
    return None


async def strain(address: Address, count: int, *, seed: int) -> Outcome:
    """So many connections, and a right request on another one for every hundred."""
    outcome = Outcome()
    rng = random.Random(seed)
    outcome.figures |= {"connections": 0, "refused": 0, "answered": 0, "ended": 0, "faults": 0}

    def note(fault: str, sent: bytes) -> None:
        outcome.count("faults")
        if len(outcome.faults) < MAX_SHOWN:
            outcome.faults.append(f"{fault}: {sent[:1000]!r}")

    async def connect(_: int) -> None:
        async with Line(address) as line:
            while outcome.figures["connections"] < count:
                outcome.count("connections")
                if outcome.figures["connections"] % 100 == 0:
                    answer = await line.post("/v1/completions", BODY)
                    outcome.require(answer.status in (200, 429), f"a right request got {answer.status}")
                sent = make(rng)
                try:
                    received = await converse(address, sent, rng)
                except TimeoutError:
                    note("no end", sent)
                    continue
                codes = STATUS.findall(received)
                outcome.count("ended" if not codes else "refused" if codes[0] >= b"400" else "answered")
                fault = fault_of(received)
                if fault is not None:
                    note(f"{fault} {received[:300]!r}", sent)

    await side_by_side(NUM_LINES, connect)
    return outcome


def run(address: Address, count: int, *, seed: int = 0) -> Outcome:
    """`strain` in a loop of its own."""
    return asyncio.run(strain(address, count, seed=seed))
