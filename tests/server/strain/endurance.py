"""Many small requests while the drafter's process is killed again and again and clients leave: no text is wrong."""

import asyncio
import random
import time
from typing import Final

from tests.server.strain.growth import Growth
from tests.server.strain.process import ServingProcess, serving
from tests.server.strain.questions import Question, plain_text, text_of, varied_question
from tests.server.strain.wire import Line, Outcome, percentile

FLAGS: Final = ("--drafter", "parallel", "--demo", "--cache-bytes", "16MB")
LEAVING = 0.1  # shares
RECHECKED = 0.05
SAMPLE_S: Final = 2.0
MAX_SLOPE: Final = 1.0  # MiB an hour, of the upper end of the 95 % interval
LONG_S: Final = 600.0  # of a shorter run a slope by the hour says nothing
MAX_GROWTH_MIB: Final = 16.0
NUM_LINES: Final = 3
LONGEST_STAY_S: Final = 0.03  # of a client that leaves: about what a request takes


class Soak:
    """What is asked of one server, and how it went."""

    def __init__(self, server: ServingProcess, count: int, rng: random.Random) -> None:
        self._server = server
        self._count = count
        self._rng = rng
        self.growth = Growth(server)
        self.took_s: list[float] = []
        self.outcome = Outcome(
            figures={"requests": 0, "left": 0, "rechecked": 0, "wrong texts": 0, "kills": 0, "other answers": 0}
        )

    async def ask(self, _: int) -> None:
        """Requests on one connection, until there were enough on all."""
        async with Line(self._server.address) as line:
            while self.outcome.figures["requests"] < self._count:
                self.outcome.count("requests")
                self.growth.sample_every(SAMPLE_S)
                asked = varied_question(self._rng)
                if self._rng.random() < LEAVING:
                    await self._leave(line, asked)
                else:
                    await self._answer(line, asked)

    async def _leave(self, line: Line, asked: Question) -> None:
        self.outcome.count("left")
        post = asyncio.create_task(line.post(asked.path, asked.body(stream=self._rng.random() < 0.5)))
        await asyncio.wait((post,), timeout=self._rng.uniform(0.0, LONGEST_STAY_S))
        post.cancel()
        await asyncio.wait((post,))
        if not post.cancelled():
            post.exception()
        line.close()

    async def _answer(self, line: Line, asked: Question) -> None:
        began = time.monotonic()
        answer = await line.post(asked.path, asked.body(stream=self._rng.random() < 0.5))
        self.took_s.append(time.monotonic() - began)
        if answer.status != 200:
            self.outcome.count("other answers")
            self.outcome.faults.append(f"status {answer.status}: {answer.body[:300]!r}")
        elif self._rng.random() < RECHECKED:
            self.outcome.count("rechecked")
            text = text_of(answer, asked)
            plain = await plain_text(line, asked)
            if text != plain:
                self.outcome.count("wrong texts")
                self.outcome.faults.append(f"{text!r} is not {plain!r}: {dict(asked.asked)}")

    async def kill(self, every_s: float) -> None:
        """Kill the drafter's process now and then; one that is not back yet is let alone."""
        async with Line(self._server.address) as line:
            while True:
                await asyncio.sleep(every_s)
                answer = await line.post("/v1/forerun/kill-drafter", b"")
                self.outcome.count("kills", answer.status == 200)


async def strain(server: ServingProcess, count: int, *, kill_every_s: float, seed: int) -> Outcome:
    """So many requests."""
    soak = Soak(server, count, random.Random(seed))
    before = server.footprint()
    killing = asyncio.create_task(soak.kill(kill_every_s))
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(NUM_LINES):
            group.create_task(soak.ask(number))
    killing.cancel()
    outcome = soak.outcome
    bounds = {}
    for name, of_all in (("server", False), ("all processes", True)):
        slope, bounds[name] = soak.growth.slope(of_all=of_all)
        outcome.figures |= {f"{name}: slope MiB/h": slope, f"{name}: its upper bound MiB/h": bounds[name]}
    outcome.figures |= {
        "seconds": time.monotonic() - began,
        "answer p50 ms": 1e3 * percentile(soak.took_s, 0.5),
        "answer p99 ms": 1e3 * percentile(soak.took_s, 0.99),
        "growth MiB": soak.growth.since_warm(),
    }
    await asyncio.sleep(6.0)  # the drafter's process is back by then, and connections are closed
    after = server.footprint()
    is_long = outcome.figures["seconds"] >= LONG_S
    outcome.require(max(bounds.values()) <= MAX_SLOPE or not is_long, f"memory grew: {soak.growth.series()}")
    outcome.require(soak.growth.since_warm() <= MAX_GROWTH_MIB, f"memory grew: {soak.growth.series()}")
    outcome.require(after.num_files <= before.num_files, f"open files: {before} became {after}")
    outcome.require(after.num_processes == before.num_processes, f"processes: {before} became {after}")
    return outcome


def run(count: int, *, kill_every_s: float = 60.0, seed: int = 0) -> Outcome:
    """`strain` on a server of its own."""
    with serving(*FLAGS) as server:
        outcome = asyncio.run(strain(server, count, kill_every_s=kill_every_s, seed=seed))
        outcome.require("Traceback" not in server.said(), server.said()[-3000:])
    return outcome
