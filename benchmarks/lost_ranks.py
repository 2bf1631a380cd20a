"""Time until a killed rank of a target is reported, and the cost of joining the ranks' choices.

python benchmarks/lost_ranks.py [--target builtin] [--num-kills 80]

Targets of two or three ranks on the CPU's own kernels, one thread each; any rank but the leader's is killed within the
first 0.3 s of a text. Logits are timed on two ranks, greedy, the wait for the other rank included.
"""

import argparse
import random
import sys
from statistics import median
from threading import Timer
from time import monotonic, perf_counter
from typing import Final

import psutil
from torch import Tensor

from forerun import Engine, EngineConfig, NoDrafter, PromptLookup, SamplingParams
from forerun.backends.cpu.host_group import HostGroup
from forerun.core.drafter_config import DrafterConfig
from forerun.core.errors import RankLostError

PROMPT: Final = "def f("
LONGEST_S: Final = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="builtin")
    parser.add_argument("--num-kills", type=int, default=80)
    arguments = parser.parse_args()
    rng = random.Random(1)
    for num_ranks in (2, 3):
        taken = sorted(kill_one(arguments.target, num_ranks, rng) for _ in range(arguments.num_kills // 2))
        times = f"{taken[0]:.3f} s (least), {median(taken):.3f} (median), {taken[-1]:.3f} (most)"
        say(f"{len(taken)} of {num_ranks} ranks killed, all named: {times}")
    say(joined(arguments.target))


def kill_one(target: str, num_ranks: int, rng: random.Random) -> float:
    """Seconds from the signal to the error that names the rank."""
    with Engine(config_of(target, num_ranks, NoDrafter())) as engine:
        victim = rng.choice([child for child in psutil.Process().children() if "--role" in child.cmdline()])
        delay, began = rng.uniform(0, LONGEST_S), monotonic()
        timer = Timer(delay, victim.kill)
        timer.start()
        try:
            while True:
                engine.generate(PROMPT, SamplingParams(max_new_tokens=1000, ignore_eos=True))
        except RankLostError as error:
            if f"pid {victim.pid}" not in str(error):
                sys.exit(f"another rank than {victim.pid} was named: {error}")
            return monotonic() - began - delay


def joined(target: str) -> str:
    """Microseconds of joining choices by the rows of a pass, and their share of the time of a text."""
    taken: list[tuple[int, float]] = []
    join = HostGroup.join_columns

    def timed(self: HostGroup, part_TN: Tensor) -> Tensor:
        began = perf_counter()
        whole_TN = join(self, part_TN)
        taken.append((len(part_TN), perf_counter() - began))
        return whole_TN

    HostGroup.join_columns = timed  # type: ignore[method-assign]
    try:
        with Engine(config_of(target, 2, PromptLookup())) as engine:
            taken.clear()
            began = perf_counter()
            engine.generate(PROMPT, SamplingParams(max_new_tokens=200, ignore_eos=True))
            seconds = perf_counter() - began
    finally:
        HostGroup.join_columns = join  # type: ignore[method-assign]
    by_rows = {rows: median(s for number, s in taken if number == rows) for rows in sorted({rows for rows, _ in taken})}
    listed = ", ".join(f"{rows} rows {1e6 * s:.0f} us" for rows, s in by_rows.items())
    return f"choices joined: {listed}; {sum(s for _, s in taken) / seconds:.1%} of a text's time"


def config_of(target: str, num_ranks: int, drafter: DrafterConfig) -> EngineConfig:
    return EngineConfig(target=target, drafter=drafter, target_ranks=num_ranks, dtype="float32", num_threads=1)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
