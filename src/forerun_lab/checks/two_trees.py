"""Compare two versions of the code: this checkout and another one in turn, each in its own processes.

python -m forerun_lab.checks.two_trees /path/to/other/checkout > two_trees.md
python -m forerun_lab.checks.two_trees /path/to/other/checkout --pairs 0 --tiers avx2,avx512_bf16    # texts alone

Both checkouts have a .venv and a built library. Texts and their log-probabilities must be equal, bit for bit, for every
drafter on every instruction set. Times are ratios of pairs, whose order changes from pair to pair; each checkout plays
once more before the first pair, which is not counted.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

PROMPTS = (
    "def read_lines(path):",
    "class Stack:\n    def push",
    "Once upon a time",
    "import os\n\ndef walk",
    "The history of",
)
NUM_TOKENS = 256  # of a timed answer
PACED = "paced:target=13ms;draft=2ms"
FIXED = {"target": "builtin", "max_length": 1024, "num_threads": 1, "measures_speedup": False}


def drafters() -> dict[str, Any]:
    """Every kind of drafter."""
    from forerun import Automatic, DraftHead, DraftModel, LayerSkip, NoDrafter, Parallel, PromptLookup, TokenRecycling
    from forerun.core.drafter_config import paper_layer_skip

    return {
        "none": NoDrafter(),
        "auto": Automatic(),
        "draft_model": DraftModel(),
        "draft_model, fixed widths": DraftModel(adaptive=False),
        "prompt_lookup": PromptLookup(),
        "recycling": TokenRecycling(),
        "layer_skip": LayerSkip(),
        "layer_skip of the paper": paper_layer_skip(),
        "eagle3": DraftHead(model="builtin-eagle3"),
        "dflash": DraftHead(model="builtin-dflash", adaptive=False),
        "parallel": Parallel(),
    }


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Engines whose texts are compared on every instruction set."""
    for name, drafter in drafters().items():
        yield name, {"drafter": drafter}
    for weights in ("int8", "int4"):
        yield f"draft_model, {weights}", {"drafter": drafters()["draft_model"], "weights": weights}
    for exactness in ("fast", "exact"):
        torch = {"kernels": "torch", "dtype": "float32", "exactness": exactness}
        yield f"none, torch's kernels, {exactness}", {"drafter": drafters()["none"], **torch}


def random_settings(rng: random.Random) -> dict[str, Any]:
    settings = {
        "max_new_tokens": rng.choice([8, 24, 40]),
        "seed": rng.randrange(1000),
        "ignore_eos": True,
        "temperature": rng.choice([0.0, 0.0, 0.7, 1.0]),
        "logprobs": rng.choice([None, 3]),
    }
    if rng.random() < 0.3:
        settings |= {"top_p": 0.9, "repetition_penalty": 1.2}
    if rng.random() < 0.2:
        settings |= {"top_k": 5, "presence_penalty": 0.5}
    return settings


def texts(tier: str, num_texts: int) -> dict[str, str]:
    """Digests of the tokens and log-probabilities of texts with random settings; none if the CPU lacks `tier`."""
    from forerun import Engine, EngineConfig, SamplingParams
    from forerun.backends.cpu.backend import NATIVE

    if not NATIVE.select_tier(tier):
        return {}
    found = {}
    for name, settings in cases():
        rng = random.Random(name)
        with Engine(EngineConfig(**{**FIXED, **settings})) as engine:
            for number in range(num_texts):
                params = SamplingParams(**random_settings(rng))
                steps = list(engine.stream(rng.choice(PROMPTS), params))
                token_ids = [token_id for step in steps for token_id in step.token_ids]
                log_probs = [repr(value) for step in steps for value in step.logprobs]
                digest = hashlib.sha256(repr((token_ids, log_probs)).encode()).hexdigest()
                found[f"{tier}, {name}, text {number}"] = digest
    return found


def times() -> dict[str, float]:
    """Seconds per token of every drafter, and to the first token, without the start of the engine."""
    from forerun import Engine, EngineConfig, SamplingParams

    found = {}
    paced = {"draft_model, paced": "draft_model", "parallel, paced": "parallel"}
    engines = {name: {"drafter": drafter} for name, drafter in drafters().items()}
    engines |= {name: {"drafter": drafters()[drafter], "device": PACED} for name, drafter in paced.items()}
    for name, settings in engines.items():
        with Engine(EngineConfig(**{**FIXED, **settings})) as engine:
            all_stats = []
            for seed, prompt in enumerate(PROMPTS):
                temperature = (0.0, 0.0, 1.0, 0.7, 0.0)[seed]
                params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=temperature, seed=seed, ignore_eos=True)
                all_stats.append(engine.generate(prompt, params).stats)
        found[f"a token: {name}"] = sum(stats.decode_s for stats in all_stats) / len(all_stats) / NUM_TOKENS
        if name in ("none", "auto"):
            found[f"first token: {name}"] = median(stats.first_token_s for stats in all_stats)
    return found


def all_tiers() -> list[str]:
    """The instruction sets of this checkout's library that this CPU has."""
    from tests.backends.cpu.conftest import tiers_here

    return tiers_here()


def run_in(tree: Path, *arguments: str) -> Any:
    """What this file prints with a checkout's Python and package."""
    command = [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), str(tree), *arguments]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def start_s(tree: Path) -> float:
    """Seconds of `forerun generate` with one token: nearly all is the start."""
    command = [str(tree / ".venv/bin/python"), "-P", "-m", "forerun", "generate", "--prompt", PROMPTS[0], "-n", "1"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    began = perf_counter()
    subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=True)
    return perf_counter() - began


def timed(tree: Path) -> dict[str, float]:
    found: dict[str, float] = run_in(tree, "--only", "times")
    return {"forerun generate -n 1": median(start_s(tree) for _ in range(3)), **found}


def compare_texts(trees: tuple[Path, Path], tiers: list[str], num_texts: int) -> bool:
    """Print how many texts are equal; True if all are."""
    num_compared = 0
    parted = []
    for tier in tiers:
        ours, others = (run_in(tree, "--only", "texts", "--tiers", tier, "--texts", str(num_texts)) for tree in trees)
        num_compared += len(ours)
        parted += sorted(case for case in ours.keys() | others.keys() if ours.get(case) != others.get(case))
    print(f"{num_compared} texts with log-probabilities compared; other than before: {', '.join(parted) or 'none'}.\n")
    return not parted and num_compared > 0


def compare_times(trees: tuple[Path, Path], num_pairs: int) -> None:
    """Print the ratios of times, this checkout's over the other's."""
    pairs = []
    for number in range(num_pairs + 1):
        order = trees if number % 2 else trees[::-1]
        found = {tree: timed(tree) for tree in order}
        pairs.append([found[tree] for tree in trees])
    print("| seconds, this checkout's over the other's | other | median | least | most |\n|---|---|---|---|---|")
    for case, other_s in pairs[-1][1].items():
        ratios = [ours[case] / others[case] for ours, others in pairs[1:]]
        print(f"| {case} | {other_s:.2g} s | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=5, help="of timed runs; 0: only texts")
    parser.add_argument("--tiers", help="instruction sets with commas [all of this CPU]")
    parser.add_argument("--texts", type=int, default=8, help="of each drafter on each instruction set; 0: only times")
    parser.add_argument("--only", choices=["texts", "times"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(times() if options.only == "times" else texts(options.tiers, options.texts)))
        return
    trees = (Path(__file__).resolve().parents[3], options.other.resolve())
    tiers = options.tiers.split(",") if options.tiers else all_tiers()
    is_same = not options.texts or compare_texts(trees, tiers, options.texts)
    if options.pairs:
        compare_times(trees, options.pairs)
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
