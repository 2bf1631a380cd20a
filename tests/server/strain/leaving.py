"""Clients that hang up in every phase of a request: how long until the engine is free again, and is anything left?"""

import asyncio
import json
import random
from typing import Final

from forerun.core.pace import BARE_ROWS
from forerun.model.runner import PREFILL_ROWS
from forerun.server.guard.connection import FIRST_LOOK_S, LOOK_GROWTH
from forerun.server.work.job import FLUSH_INTERVAL_S
from forerun.server.work.prompts import NUM_READERS
from tests.server.strain.process import Footprint, ServingProcess, serving
from tests.server.strain.wire import Address, Line, Outcome, percentile

STEP_S = 0.004  # of the paced device, so that a pass can be interrupted
DRAFT_S = 0.001
PACED: Final = ("--device", f"paced:target={STEP_S * 1e3:g}ms;draft={DRAFT_S * 1e3:g}ms", "--fixed-widths")
READING_S: Final = PREFILL_ROWS / BARE_ROWS * (STEP_S + DRAFT_S)  # of one pass over a prompt, by both models
SPARE_S: Final = 0.02  # beyond a pass: what the network and the event loop may take
SHORT: Final = json.dumps({"prompt": "def", "max_tokens": 1}).encode()
HEAD: Final = (
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
PASS_S: Final = {"queued": STEP_S, "prefill": READING_S, "streaming": STEP_S, "between events": STEP_S}
PHASES: Final = tuple(PASS_S)
FOUND_OUT_S: Final = FIRST_LOOK_S * (1 + LOOK_GROWTH)  # of who hung up politely, by the second look
FOUND_S: Final = {phase: FOUND_OUT_S if phase in ("queued", "prefill") else 2 * FLUSH_INTERVAL_S for phase in PHASES}
WARM_UP: Final = 200  # requests, after which caches and pools have their size
MAX_GROWTH_MIB: Final = 32.0
MAX_NEW: Final = 1500


def request(rng: random.Random, *, is_long: bool) -> bytes:
    """A stream that would go on for seconds; a long one reads its prompt for some passes first."""
    prompt = "".join(f"def f{rng.randrange(1000)}(" for _ in range(150 if is_long else 1))
    asked = {"prompt": prompt, "max_tokens": MAX_NEW, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    return HEAD % len(body) + body


class Caller:
    """A client that hangs up."""

    def __init__(self, address: Address) -> None:
        self._address = address

    async def connect(self, sent: bytes) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(sent)

    async def read_events(self, number: int) -> None:
        for _ in range(number):
            await self._reader.readuntil(b"\n\n")

    def hang_up(self, *, politely: bool) -> None:
        """By an end of what it sends and reads, or by a reset."""
        if politely:
            self._writer.close()
        else:
            self._writer.transport.abort()


async def leave(address: Address, phase: str, rng: random.Random) -> Caller:
    """A client in this phase of its request, about to hang up."""
    caller = Caller(address)
    await caller.connect(request(rng, is_long=phase == "prefill"))
    match phase:
        case "queued":
            await asyncio.sleep(rng.uniform(0.001, 0.004))
        case "prefill":
            await asyncio.sleep(rng.uniform(0.001, 4 * STEP_S))
        case _:
            await caller.read_events(rng.randrange(2, 6))
            if phase == "between events":
                await asyncio.sleep(rng.uniform(0.0, STEP_S))
    return caller


async def usual_s(line: Line) -> float:
    """What a short request takes where nobody else asks."""
    return percentile([await timed(line) for _ in range(50)], 0.5)


async def timed(line: Line) -> float:
    began = asyncio.get_running_loop().time()
    answer = await line.post("/v1/completions", SHORT)
    assert answer.status == 200, answer
    return asyncio.get_running_loop().time() - began


async def strain(server: ServingProcess, count: int, *, seed: int) -> Outcome:
    """So many clients hang up, one after another; after each a short request shows when the engine is free."""
    outcome = Outcome()
    rng = random.Random(seed)
    late: dict[str, list[float]] = {phase: [] for phase in PHASES}
    before: Footprint | None = None
    async with Line(server.address) as line:
        for number in range(count + WARM_UP):
            if number == WARM_UP:
                usual = await usual_s(line)
                before = server.footprint()
            phase = PHASES[number % len(PHASES)]
            ahead = await leave(server.address, "streaming", rng) if phase == "queued" else None
            caller = await leave(server.address, phase, rng)
            caller.hang_up(politely=rng.random() < 0.5)
            if ahead is not None:
                ahead.hang_up(politely=True)
            took_s = await timed(line)
            if number >= WARM_UP:
                late[phase].append(max(0.0, took_s - usual))
        await asyncio.sleep(0.5)
        numbers = (await line.get("/metrics")).body.decode()
    assert before is not None
    after = server.footprint()
    for phase, values in late.items():
        late_s = percentile(values, 0.99)
        most_s = PASS_S[phase] + FOUND_S[phase] + SPARE_S
        outcome.figures[f"{phase}: free after, p50 ms"] = 1e3 * percentile(values, 0.5)
        outcome.figures[f"{phase}: free after, p99 ms"] = 1e3 * late_s
        outcome.require(late_s <= most_s, f"{phase}: {1e3 * late_s:.1f} ms p99, where {1e3 * most_s:.0f} are allowed")
    outcome.figures |= {"disconnects": count, "usual ms": 1e3 * usual, "growth MiB": after.rss_mib - before.rss_mib}
    outcome.require(after.rss_mib - before.rss_mib <= MAX_GROWTH_MIB, f"memory: {before} became {after}")
    most_threads = before.num_threads + NUM_READERS  # a pool starts them as more owners' prompts come at a time
    outcome.require(after.num_threads <= most_threads, f"threads: {before} became {after}")
    outcome.require(after.num_files <= before.num_files, f"open files: {before} became {after}")
    for name in ("num_requests_waiting", "num_requests_running"):
        outcome.require(f"forerun:{name} 0.0\n" in numbers, f"{name} is not 0 at the end")
    return outcome


def run(count: int, *, seed: int = 0) -> Outcome:
    """`strain` on a server of its own."""
    with serving(*PACED, "--cache-bytes", "16MB") as server:
        outcome = asyncio.run(strain(server, count, seed=seed))
        outcome.require("Traceback" not in server.said(), server.said()[-3000:])
    return outcome
