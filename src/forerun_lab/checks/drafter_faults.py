"""Kill or stop the drafter's process during generation, and measure the effect on the stream.

python -m forerun_lab.checks.drafter_faults kill --count 1000
python -m forerun_lab.checks.drafter_faults stop --count 300

Real signals are sent to the real process of the built-in pair, and every text is compared with that of `none`. A gap is
the time between two steps of the stream. The extra gap is the longest gap within half a second after the fault minus
the median of all gaps.
"""

import argparse
import os
import random
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter, sleep

from forerun import DrafterState, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
from forerun_lab.checks.common import read_prompts, standard_arguments, write_results

AFTERMATH_S = 0.5
MIN_ROUNDS = 12  # rounds with a drafter before the next fault
MAX_ROUNDS = 40
NUM_TEXTS = 24  # distinct requests
PLAIN_EVERY = 7  # how often `none` writes one of them again, for its speed


@dataclass(kw_only=True)
class Record:
    """The measurements over all faults."""

    num_requests: int = 0
    num_failed: int = 0
    num_changed: int = 0
    steps_s: list[float] = field(default_factory=list)
    faults_at: list[float] = field(default_factory=list)
    gaps: list[tuple[float, float]] = field(default_factory=list)  # time of a step, and seconds since the previous one
    back_s: list[float] = field(default_factory=list)
    stopped: list[tuple[float, float]] = field(default_factory=list)
    tokens: list[tuple[float, int]] = field(default_factory=list)
    plain_tokens: int = 0
    plain_s: float = 0.0

    def extra_gaps_s(self) -> list[float]:
        usual = median(gap for _, gap in self.gaps)
        found = []
        for fault in self.faults_at:
            after = [gap for moment, gap in self.gaps if fault < moment <= fault + AFTERMATH_S + gap]
            found.append(max(after, default=usual) - usual)
        return found

    def goodput(self) -> float:
        """Tokens per second while the drafter was stopped, over those of `none`."""
        num = sum(count for moment, count in self.tokens if any(start < moment <= end for start, end in self.stopped))
        busy = sum(gap for moment, gap in self.gaps if any(start < moment <= end for start, end in self.stopped))
        return (num / busy) / (self.plain_tokens / self.plain_s)


class Trial:
    """An engine whose drafter is killed or stopped from time to time, and one without a drafter."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.record = Record()
        self.engine = Engine(EngineConfig(drafter=Parallel(), num_threads=1))
        self.plain = Engine(EngineConfig(drafter=NoDrafter(), num_threads=1))
        self.rounds_left = 20
        self.harmed_at = 0.0
        self.is_stopped = False
        self.expected: dict[int, tuple[int, ...]] = {}

    def run(self) -> Record:
        prompts = read_prompts(NUM_TEXTS)
        while len(self.record.faults_at) < self.arguments.count:
            number = self.record.num_requests
            text = number % NUM_TEXTS
            params = SamplingParams(max_new_tokens=384, temperature=(0.0, 1.0)[text % 2], seed=text, ignore_eos=True)
            if text not in self.expected or number % PLAIN_EVERY == 0:
                self.expected[text] = self.write_plainly(prompts[text], params)
            self.write(prompts[text], params, self.expected[text])
            if number % 50 == 0:
                print(f"{len(self.record.faults_at)} faults, {number + 1} requests, {self.record.num_changed} changed",
                      flush=True)  # fmt: skip
        self.engine.close()
        self.plain.close()
        return self.record

    def write_plainly(self, prompt: str, params: SamplingParams) -> tuple[int, ...]:
        began = perf_counter()
        expected = self.plain.generate(prompt, params)
        self.record.plain_tokens += expected.stats.num_new_tokens
        self.record.plain_s += expected.stats.decode_s
        if self.harmed_at:  # only the other engine's time counts
            self.harmed_at += perf_counter() - began
        return expected.token_ids

    def write(self, prompt: str, params: SamplingParams, expected: tuple[int, ...]) -> None:
        record = self.record
        token_ids: list[int] = []
        last = 0.0
        try:
            for step in self.engine.stream(prompt, params):
                now = perf_counter()
                if last:
                    record.gaps.append((now, now - last))
                record.tokens.append((now, len(step.token_ids)))
                token_ids += step.token_ids
                self.watch(step.stats.drafter, step.stats.num_accepted, now)
                last = perf_counter()
        except Exception as error:  # noqa: BLE001 - counted, whatever it was
            print(f"failed: {error!r}", flush=True)
            record.num_failed += 1
        record.num_requests += 1
        record.num_changed += tuple(token_ids) != expected

    def watch(self, state: DrafterState, num_accepted: int, now: float) -> None:
        """Record that drafting has resumed, or cause the next fault."""
        if self.harmed_at:
            if state is DrafterState.READY and num_accepted and not self.is_stopped and now > self.harmed_at + 0.02:
                self.record.back_s.append(now - self.harmed_at)
                self.harmed_at = 0.0
                self.rounds_left = self.rng.randint(MIN_ROUNDS, MAX_ROUNDS)
        elif state is DrafterState.READY:
            self.rounds_left -= 1
            if self.rounds_left <= 0:
                self.harm()

    def harm(self) -> None:
        pid = self.engine.drafter_pid
        if pid is None:
            return
        self.record.faults_at.append(perf_counter())
        self.harmed_at = perf_counter()
        if self.arguments.kind == "kill":
            os.kill(pid, signal.SIGKILL)
            return
        os.kill(pid, signal.SIGSTOP)
        self.is_stopped = True
        length_s = self.rng.choice((0.1, 0.3, 1.0, 3.0)) * self.rng.uniform(0.5, 1.0)
        threading.Thread(target=self.go_on, args=(pid, perf_counter(), length_s), daemon=True).start()

    def go_on(self, pid: int, began: float, length_s: float) -> None:
        sleep(length_s)
        with suppress(ProcessLookupError):  # it was found hanging, and replaced
            os.kill(pid, signal.SIGCONT)
        self.record.stopped.append((began, perf_counter()))
        self.is_stopped = False
        self.harmed_at = perf_counter()


def main() -> None:
    parser = standard_arguments(__doc__, "drafter_faults")
    parser.add_argument("kind", choices=["kill", "stop"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.theme += f"_{arguments.kind}"
    record = Trial(arguments).run()
    extra_gaps = record.extra_gaps_s()
    extra = quantiles(extra_gaps, n=1000)
    back = quantiles(record.back_s, n=1000)
    row: dict[str, object] = {
        "fault": {"kill": "SIGKILL", "stop": "SIGSTOP"}[arguments.kind],
        "times": len(record.faults_at),
        "requests": record.num_requests,
        "failed": record.num_failed,
        "texts changed": record.num_changed,
        "usual gap ms": f"{1e3 * median(gap for _, gap in record.gaps):.1f}",
        "extra gap ms, p50 / p99 / max": " / ".join(
            f"{1e3 * s:.1f}" for s in (extra[499], extra[989], max(extra_gaps))
        ),
        "drafting again s, p50 / p95 / max": f"{back[499]:.2f} / {back[949]:.2f} / {max(record.back_s):.2f}",
    }  # fmt: skip
    if arguments.kind == "stop":
        row["goodput while stopped, over none"] = f"{record.goodput():.3f}"
    notes = [
        "Requests of 384 tokens, 24 different ones, greedy and at temperature 1 in turn; both processes on one machine "
        "with two cores. Drafting again: from the signal (SIGSTOP: from SIGCONT, unless it was replaced before) to "
        "a step with accepted tokens."
    ]
    write_results(arguments, "Faults of the drafter's process", [row], notes)


if __name__ == "__main__":
    main()
