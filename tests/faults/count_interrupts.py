"""KeyboardInterrupt at random moments of requests with every drafter: is the engine as it was, and the next text right?

python -m tests.faults.count_interrupts --count 10000

Each action (write a text, cancel one, begin another meanwhile, forget) is interrupted by a timer's signal at a random
moment. Afterwards the next text is compared with that of an engine that nobody interrupts, now and then from another
thread, and so are the cache's records and what belongs to the thread. See tests/faults/ordeal.py.
"""

import argparse
import random
from time import perf_counter

from forerun import Engine, EngineConfig, ForerunError, NoDrafter
from tests.faults.ordeal import DRAFTERS, Ordeal, Question, ask, interrupt_at_random

PORTION = 10  # interrupts between two looks at how many there were


def usual_s(ordeal: Ordeal) -> float:
    """Seconds of an action that nobody interrupts."""
    began = perf_counter()
    for _ in range(10):
        ordeal.act()
    return (perf_counter() - began) / 10


def endure(name: str, questions: list[Question], count: int, seed: int) -> tuple[int, int]:
    """Interrupt one drafter's engine so often; how often it was, and how often something was wrong afterwards."""
    rng, num_interrupted, num_failed = random.Random(seed), 0, 0
    with Engine(EngineConfig(drafter=DRAFTERS[name], num_threads=1)) as engine:
        ordeal = Ordeal(engine, questions, rng)
        within_s = usual_s(ordeal)
        while num_interrupted < count:
            try:
                num_interrupted += interrupt_at_random(ordeal, rng, within_s=within_s, count=PORTION)
            except (AssertionError, ForerunError) as error:
                num_failed += 1
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
    return num_interrupted, num_failed


def main() -> None:
    """Print a line for every drafter, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="interrupts, over all drafters")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1)) as plain:
        questions = ask(plain)
    totals = [0, 0]
    for name in DRAFTERS:
        began = perf_counter()
        found = endure(name, questions, -(-arguments.count // len(DRAFTERS)), arguments.seed)
        totals = [total + number for total, number in zip(totals, found, strict=True)]
        print(f"{name:30}{found[0]:7} interrupted{found[1]:5} failures{perf_counter() - began:8.0f} s", flush=True)
    print(f"{'all':30}{totals[0]:7} interrupted{totals[1]:5} failures")


if __name__ == "__main__":
    main()
