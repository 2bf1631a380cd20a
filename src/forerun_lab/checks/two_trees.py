"""Compare two versions of the code: this checkout and another one in turn, each in its own processes.

python -m forerun_lab.checks.two_trees /path/to/other/checkout

Both checkouts have a .venv. Texts and a prefill's logits must be equal in all cases; times are ratios, pair by pair.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

Settings = dict[str, Any]

PROMPTS = ("def is_even(n):\n", "class Stack:\n    def push(self, x):\n", "import os\n\ndef walk(path):\n    for")
NUM_TOKENS = 128
PACED = "paced:target=13ms;draft=2ms"
GREEDY: Settings = {"temperature": 0.0}
SAMPLED: Settings = {"temperature": 1.0, "seed": 3}
SHAPED: Settings = {
    "temperature": 0.7,
    "min_p": 0.05,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.3,
    "top_k": 40,
    "seed": 5,
}


def cases() -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Name, settings of an engine, and whether it is timed."""
    from forerun import DraftModel, LayerSkip, NoDrafter, Parallel, PromptLookup

    draft = DraftModel(model="builtin-draft")
    timed = {"none": NoDrafter(), "draft_model": draft, "prompt_lookup": PromptLookup(), "layer_skip": LayerSkip()}
    for name, drafter in timed.items():
        yield name, {"drafter": drafter}, True
    yield "paced draft_model", {"drafter": draft, "device": PACED}, True
    yield "paced parallel", {"drafter": Parallel(draft=draft), "device": PACED}, True
    for weights in ("int8", "int4"):
        yield f"draft_model {weights}", {"drafter": draft, "weights": weights}, False
    for exactness in ("fast", "exact"):
        settings = {"kernels": "torch", "dtype": "float32", "exactness": exactness}
        yield f"none, torch's kernels, {exactness}", {"drafter": NoDrafter(), **settings}, False


def measure() -> dict[str, dict[str, Any]]:
    """Texts and logits as digests, and times, in this process's checkout."""
    import torch

    from forerun import Engine, EngineConfig, SamplingParams

    found: dict[str, dict[str, Any]] = {"same": {}, "times": {}}
    for name, settings, is_timed in cases():
        fixed = {"max_length": 512, "measures_speedup": False, **settings}
        try:
            config = EngineConfig(**fixed)
        except TypeError:  # weights were named by the dtype
            config = EngineConfig(**{"dtype": fixed.pop("weights"), **fixed})
        with Engine(config) as engine:
            for kind, changes in {"greedy": GREEDY, "temperature 1": SAMPLED, "shaped": SHAPED}.items():
                params = SamplingParams(max_new_tokens=NUM_TOKENS, ignore_eos=True, **changes)
                answers = [engine.generate(prompt, params) for prompt in PROMPTS]
                found["same"][f"{name}, {kind}"] = str([answer.token_ids for answer in answers])
                if is_timed and kind != "shaped":
                    found["times"][f"{name}, {kind}"] = (
                        sum(a.stats.decode_s for a in answers) / len(answers) / NUM_TOKENS
                    )
            engine.forget()
            with torch.inference_mode():
                prompt_ids = engine.encode(PROMPTS[0])
                logits = engine._target.extend(prompt_ids, num_logit_rows=len(prompt_ids))
            found["same"][f"{name}, logits"] = hashlib.sha256(repr(logits.double().tolist()).encode()).hexdigest()
    return found


def run_in(tree: Path) -> dict[str, dict[str, Any]]:
    command = [str(tree / ".venv/bin/python"), str(Path(__file__).resolve()), str(tree), "--measure"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    trees = (options.other.resolve(), Path(__file__).resolve().parents[3])
    pairs = [[run_in(tree) for tree in trees] for _ in range(options.pairs)]
    parted = sorted({case for old, new in pairs for case in old["same"] if old["same"][case] != new["same"][case]})
    print(f"{len(pairs[0][0]['same'])} texts and logits compared in each pair; parted: {parted or 'none'}.\n")
    print("| time for the same tokens, this over the other | median | least | most |\n|---|---|---|---|")
    for case in pairs[0][0]["times"]:
        ratios = [new["times"][case] / old["times"][case] for old, new in pairs]
        print(f"| {case} | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |")
    sys.exit(bool(parted))


if __name__ == "__main__":
    main()
