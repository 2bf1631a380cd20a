"""Ten times as many requests as can be written: those that are taken are right, the others are told so at once."""

import asyncio
import random
import time
from typing import Final

from tests.server.strain.growth import Growth
from tests.server.strain.process import ServingProcess, serving
from tests.server.strain.questions import Question, plain_text, question, text_of
from tests.server.strain.wire import Answer, Line, Outcome, percentile

PACED: Final = (
    "--device",
    "paced:target=5ms;draft=1ms",
    "--fixed-widths",
    "--cache-bytes",
    "16MB",
    "--max-queued",
    "16",
)
NUM_QUESTIONS: Final = 60
OVERLOAD: Final = 10
MOST_REFUSAL_S: Final = 0.05
MAX_GROWTH_MIB: Final = 16.0  # from the end of the first quarter to the end
SAMPLE_S: Final = 1.0
NUM_LINES: Final = 200  # connections; one that is free takes the next request


async def capacity(line: Line, questions: list[Question]) -> float:
    """Requests a second, one after the other."""
    began = time.monotonic()
    for asked in questions:
        await line.post(asked.path, asked.body())
    return len(questions) / (time.monotonic() - began)


class Crowd:
    """Requests at random times, however the server is."""

    def __init__(self, server: ServingProcess, texts: list[tuple[Question, str]], rng: random.Random) -> None:
        self._server = server
        self._texts = texts
        self._rng = rng
        self._lines = [Line(server.address) for _ in range(NUM_LINES)]
        self.refusals_s: list[float] = []
        self.outcome = Outcome(figures={"right": 0, "wrong": 0, "refused": 0, "late to ask": 0, "other answers": 0})

    async def ask(self) -> None:
        """One request."""
        if not self._lines:
            self.outcome.count("late to ask")
            return
        line = self._lines.pop()
        asked, text = self._rng.choice(self._texts)
        began = time.monotonic()
        try:
            answer = await line.post(asked.path, asked.body(stream=self._rng.random() < 0.5))
        except (OSError, EOFError, TimeoutError) as error:
            self.outcome.count("other answers")
            self.outcome.faults.append(f"no answer: {type(error).__name__}")
            line.close()
        else:
            self._judge(answer, text, time.monotonic() - began)
        self._lines.append(line)

    def _judge(self, answer: Answer, text: str, took_s: float) -> None:
        match answer.status:
            case 200:
                is_right = text_of(answer) == text
                self.outcome.count("right" if is_right else "wrong")
                self.outcome.require(is_right, f"a wrong text: {text_of(answer)!r} for {text!r}")
            case 429:
                self.refusals_s.append(took_s)
                self.outcome.count("refused")
                self.outcome.require(b"retry-after" in answer.headers, "no Retry-After")
            case status:
                self.outcome.count("other answers")
                self.outcome.faults.append(f"status {status}: {answer.body[:300]!r}")

    def close(self) -> None:
        for line in self._lines:
            line.close()


async def strain(server: ServingProcess, seconds: float, *, seed: int) -> Outcome:
    """Offer ten times what the server can do for so long."""
    rng = random.Random(seed)
    questions = [question(rng) for _ in range(NUM_QUESTIONS)]
    async with Line(server.address) as line:
        texts = [(asked, await plain_text(line, asked)) for asked in questions]
        per_s = OVERLOAD * await capacity(line, questions)
    crowd = Crowd(server, texts, rng)
    growth = Growth(server)
    tasks = set()
    began = time.monotonic()
    next_s = 0.0
    while next_s < seconds:
        next_s += rng.expovariate(per_s)
        await asyncio.sleep(max(0.0, began + next_s - time.monotonic()))
        growth.sample_every(SAMPLE_S)
        task = asyncio.create_task(crowd.ask())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    crowd.close()
    outcome = crowd.outcome
    outcome.figures |= {
        "seconds": seconds,
        "offered per second": per_s,
        "refusal p50 ms": 1e3 * percentile(crowd.refusals_s, 0.5),
        "refusal p99 ms": 1e3 * percentile(crowd.refusals_s, 0.99),
        "growth MiB": growth.since_warm(),
    }
    outcome.require(percentile(crowd.refusals_s, 0.99) <= MOST_REFUSAL_S, "refusals take longer than 50 ms p99")
    outcome.require(growth.since_warm() <= MAX_GROWTH_MIB, f"memory grew: {growth.series()}")
    outcome.require(outcome.figures["refused"] > 0 and outcome.figures["right"] > 0, "no overload")
    return outcome


def run(seconds: float, *, seed: int = 0) -> Outcome:
    """`strain` on a server of its own."""
    with serving(*PACED) as server:
        outcome = asyncio.run(strain(server, seconds, seed=seed))
        outcome.require("Traceback" not in server.said(), server.said()[-3000:])
    return outcome
