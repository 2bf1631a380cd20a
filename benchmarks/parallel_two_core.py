"""The parallel drafter on a CPU of two cores, against the serial one that has both of them. Real speed, nothing paced.

python benchmarks/parallel_two_core.py [--num-prompts 24] [--num-new 128]
"""

import argparse
from dataclasses import dataclass, field

import torch
from common import Contestant, measure_in_turn, ratio, read_prompts, standard_arguments, write_results

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, Parallel, SamplingParams
from forerun.core.drafter_config import DrafterConfig


@dataclass(kw_only=True)
class Entry:
    """One drafter with the target's number of threads."""

    name: str
    drafter: DrafterConfig
    threads: int
    params: SamplingParams
    prompts: list[str]
    texts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    num_rounds: int = 0
    num_tokens: int = 0
    wait_s: float = 0.0
    verify_s: float = 0.0

    def open(self) -> Contestant:
        self.engine = Engine(EngineConfig(drafter=self.drafter, num_threads=self.threads))
        return Contestant(name=self.name, write=self.write)

    def write(self, number: int) -> int:
        torch.set_num_threads(self.threads)  # of the process, so every turn sets its own
        result = self.engine.generate(self.prompts[number], self.params)
        if number:
            self.texts[number] = result.token_ids
            self.num_rounds += result.stats.num_rounds
            self.num_tokens += result.stats.num_new_tokens
            self.wait_s += result.stats.draft_s
            self.verify_s += result.stats.verify_s
        return len(result.token_ids)


def run(arguments: argparse.Namespace, temperature: float) -> list[dict[str, object]]:
    params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1, ignore_eos=True)
    prompts = read_prompts(arguments.num_prompts + 1)
    shapes: list[tuple[str, DrafterConfig, int]] = [
        ("none, 2 threads", NoDrafter(), 2),
        ("none, 1 thread", NoDrafter(), 1),
        ("serial, 2 threads", DraftModel(), 2),
        ("serial, 1 thread", DraftModel(), 1),
        ("parallel, 1 thread + 1 core", Parallel(), 1),
        ("parallel, 2 threads + 1 of their cores", Parallel(), 2),
    ]
    entries = [
        Entry(name=name, drafter=drafter, threads=threads, params=params, prompts=prompts)
        for name, drafter, threads in shapes
    ]
    contestants = [entry.open() for entry in entries]
    measure_in_turn(contestants, arguments.num_prompts)
    for entry in entries:
        entry.engine.close()
    return [
        {
            "temperature": temperature,
            "drafter": entry.name,
            "tok/s": f"{contestant.tokens_per_s:.0f}",
            "over none, 2 threads": f"{ratio(contestant, contestants[0])[0]:.2f}",
            "over serial, 2 threads": f"{ratio(contestant, contestants[2])[0]:.2f}",
            "median of that": f"{ratio(contestant, contestants[2])[1]:.2f}",
            "tokens/round": f"{entry.num_tokens / entry.num_rounds:.2f}",
            "verify ms": f"{1e3 * entry.verify_s / entry.num_rounds:.2f}",
            "draft or wait ms": f"{1e3 * entry.wait_s / entry.num_rounds:.2f}",
            "texts as none": f"{sum(entry.texts[i] == entries[0].texts[i] for i in entry.texts)}/{len(entry.texts)}",
        }
        for entry, contestant in zip(entries, contestants, strict=True)
    ]


def main() -> None:
    parser = standard_arguments(__doc__, "parallel_two_core")
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument("--num-new", type=int, default=128)
    arguments = parser.parse_args()
    rows = run(arguments, 0.0) + run(arguments, 1.0)
    notes = [
        f"{arguments.num_prompts} held-out prompts x {arguments.num_new} tokens, whole calls with prefill, all in turn "
        "prompt by prompt after one warm-up each. Drafter's process pinned to the second core, one thread."
    ]
    write_results(arguments, "Two cores: parallel against serial", rows, notes)


if __name__ == "__main__":
    main()
