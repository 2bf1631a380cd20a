"""Where drafting cannot pay: a target that drafts for itself against plain decoding, on prompts of random tokens.

python benchmarks/never_slower.py [--num-prompts 12] [--num-new 512]

Cold: a new engine for every prompt, so that nothing is known of the model, of what drafting brings or what it costs.
Warm: one engine for all of them.
"""

import argparse
import random
from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch
from common import WITHOUT_LOOKUP, Choice, standard_arguments, write_results

from forerun import Engine, EngineConfig, LayerSkip, NoDrafter, SamplingParams

PROMPT_TOKENS = 32
BLOCK = 16
DRAFTERS: dict[str, Choice] = {
    "none (how noisy the machine is)": (NoDrafter(), None),
    "layer_skip": (LayerSkip(), None),
    "layer_skip without lookup": (LayerSkip(), WITHOUT_LOOKUP),
    "layer_skip, int4 copy": (LayerSkip(weights="int4"), None),
}


def random_prompts(number: int, vocab_size: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1, vocab_size) for _ in range(PROMPT_TOKENS)] for _ in range(number)]


def decode_in_turn(engines: Sequence[Engine], prompt_ids: list[int], params: SamplingParams) -> list[float]:
    """Seconds of decoding of each engine, all writing the same answer, a block of tokens each in turn.

    A machine that others use as well is fast for some seconds and slow for others: so near each other, both see the
    same. Who comes first changes from block to block.
    """
    streams = [engine.stream(prompt_ids, params) for engine in engines]
    seconds, written = [0.0] * len(streams), [0] * len(streams)
    for goal in range(BLOCK, params.max_new_tokens + BLOCK, BLOCK):
        turns = list(enumerate(streams))
        for place, stream in turns if goal // BLOCK % 2 else reversed(turns):
            began = perf_counter()
            while written[place] < min(goal, params.max_new_tokens):
                written[place] += len(next(stream).token_ids)
            seconds[place] += perf_counter() - began
    return seconds


def measure(chosen: Choice, temperature: float, is_cold: bool, arguments: argparse.Namespace) -> list[float]:
    """Speed over plain decoding, prompt by prompt."""
    config = EngineConfig(num_threads=arguments.threads)
    plain = Engine(EngineConfig(num_threads=arguments.threads, drafter=NoDrafter()))
    drafting: Engine | None = None
    found = []
    for number, prompt_ids in enumerate(random_prompts(arguments.num_prompts, plain.spec.vocab_size)):
        params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=number, ignore_eos=True)
        if drafting is None or is_cold:
            drafter, policies = chosen
            drafting = Engine(EngineConfig(num_threads=config.num_threads, drafter=drafter), policies=policies)
        plain_s, drafted_s = decode_in_turn((plain, drafting), prompt_ids, params)
        found.append(plain_s / drafted_s)
    return found


def main() -> None:
    parser = standard_arguments(__doc__ or "", "never_slower", num_prompts=12, num_new=512)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, object]] = []
    for temperature in (0.0, 1.0):
        for name, drafter in DRAFTERS.items():
            for is_cold in (True, False):
                ratios = sorted(measure(drafter, temperature, is_cold, arguments))
                rows.append(
                    {
                        "T": temperature,
                        "drafter": name,
                        "engine": "cold" if is_cold else "warm",
                        "over `none`, median": f"{median(ratios):.3f}",
                        "least": f"{ratios[0]:.3f}",
                        "lower quartile": f"{ratios[len(ratios) // 4]:.3f}",
                        "most": f"{ratios[-1]:.3f}",
                    }
                )
                print(rows[-1], flush=True)
    write_results(
        arguments,
        "Never slower: prompts of random tokens",
        rows,
        [
            f"{arguments.num_prompts} prompts of {PROMPT_TOKENS} random tokens x {arguments.num_new} new tokens, "
            f"decoding alone; both write the same answer at the same time, {BLOCK} tokens each in turn."
        ],
    )


if __name__ == "__main__":
    main()
