"""Measure decoding speed while other programs use the same cores.

python benchmarks/busy_machine.py MODEL [--threads 2] [--tier avx2] [--peer NAME=COMMAND] [--seconds 4] [--repeats 3]

Each contestant decodes endlessly in its own process and writes one byte per token; a peer is any program that does so.
Its bytes are counted while it runs alone, beside a second process like it, and beside one and two busy loops. In each
state all contestants are measured one after another, so that other load on the machine affects all of them.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

WARM_S = 1.5  # after each change of what runs
BUSY_LOOP = ("sh", "-c", "while :; do :; done")
STATES = ("quiet", "a second one", "one busy loop", "two busy loops")


def decode(model: str, num_threads: int, tier: str | None) -> None:
    """Run a contestant, which generates tokens endlessly."""
    from forerun import Engine, EngineConfig, NoDrafter, SamplingParams
    from forerun.backends.cpu.probe import select_tier

    assert select_tier(tier), f"no tier {tier} here"
    engine = Engine(EngineConfig(target=model, num_threads=num_threads, drafter=NoDrafter()))
    params = SamplingParams(max_new_tokens=256, ignore_eos=True)
    while True:
        for _ in engine.stream("Once upon a time", params):
            os.write(1, b".")


class Contestant:
    """A process that decodes, stopped except during its turn."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        self._pipe = self._process.stdout.fileno()
        assert os.read(self._pipe, 1), f"{shlex.join(command)} ended before its first token"
        os.set_blocking(self._pipe, False)
        self._process.send_signal(signal.SIGSTOP)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        self._process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGSTOP)

    def take(self) -> int:
        """Number of tokens since the last call."""
        count = 0
        try:
            while some := os.read(self._pipe, 1 << 16):
                count += len(some)
        except BlockingIOError:
            return count
        raise AssertionError("a contestant ended")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(count):
            loop = subprocess.Popen(BUSY_LOOP)
            stack.callback(loop.wait)
            stack.callback(loop.kill)
        yield


def speeds(contestants: Sequence[Contestant], seconds: float) -> list[float]:
    """Tokens per second of each contestant, all running at once."""
    with ExitStack() as stack:
        for contestant in contestants:
            stack.enter_context(contestant.going_on())
        time.sleep(WARM_S)
        for contestant in contestants:
            contestant.take()
        began = time.perf_counter()
        time.sleep(seconds)
        counts = [contestant.take() for contestant in contestants]
        return [count / (time.perf_counter() - began) for count in counts]


def measure(pair: Sequence[Contestant], state: str, seconds: float) -> list[float]:
    if state == "a second one":
        return speeds(pair, seconds)
    with busy_loops(STATES.index(state) - 1 if "loop" in state else 0):
        return speeds(pair[:1], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tier")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.decode:
        decode(arguments.model, arguments.threads, arguments.tier)
    own = [sys.executable, __file__, arguments.model, "--decode", "--threads", str(arguments.threads)]
    commands = {"forerun": own + (["--tier", arguments.tier] if arguments.tier else [])}
    commands |= {name: shlex.split(command) for name, _, command in (peer.partition("=") for peer in arguments.peer)}
    with ExitStack() as stack:
        pairs: dict[str, list[Contestant]] = {}
        for name, command in commands.items():
            pairs[name] = [Contestant(command) for _ in range(2)]
            for contestant in pairs[name]:
                stack.callback(contestant.close)
        found: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.repeats):
            for state in arguments.states:
                for name, pair in pairs.items():
                    found.setdefault((name, state), []).extend(measure(pair, state, arguments.seconds))
    print(f"| tokens/s | {' | '.join(arguments.states)} |\n{'|---' * (len(arguments.states) + 1)}|")
    for name in commands:
        middle = [median(found[name, state]) for state in arguments.states]
        cells = [f"{value:.1f} ({value / middle[0]:.2f})" for value in middle]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
