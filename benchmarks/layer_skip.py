"""A target that drafts for itself, by what finds its skipped sublayers and by what it drafts with, all in one run.

python benchmarks/layer_skip.py [--num-prompts 48] [--num-new 128] [--device cpu] [--temperatures 0 1]

The built-in target answers held-out prompts, contestants taking turns prompt by prompt. Searches start with nothing and
last over all prompts; "prepared" ones start with the sets that a search over other prompts has left. On a paced device
(--device paced:target=10ms) passes take stated times in proportion to the weights they read: a projection for models
whose passes take so long, with what the built-in target really accepts.
"""

import argparse
import gc
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from common import read_prompts, standard_arguments, write_results

from forerun import DraftModel, Engine, EngineConfig, LayerSkip, NoDrafter, PromptLookup, SamplingParams
from forerun.core.drafter_config import DrafterConfig, paper_layer_skip
from forerun.drafting.layer_skip.drafter import search_of
from forerun.engine.skip_finder import find_skip_sets, keep_sets

NUM_FIRST = 10  # requests whose speed is told apart: those a search is slowest in
PREPARED_ON = 24  # other prompts


@dataclass(kw_only=True)
class Run:
    """One drafter over all prompts."""

    name: str
    engine: Engine
    num_tokens: int = 0
    num_rounds: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    pass_s: list[float] = field(default_factory=list)
    decode_s: list[float] = field(default_factory=list)
    searched_s: list[float] = field(default_factory=list)
    texts: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Time the passes of one row: draft passes, or for plain decoding the target's own."""
        drafter: Any = self.engine._drafter
        runner = getattr(drafter, "runner", self.engine._target)
        forward = runner.forward

        def timed(inputs: Any, *others: Any) -> Any:
            began = perf_counter()
            logits = forward(inputs, *others)
            if len(inputs.token_ids) == 1:
                self.pass_s.append(perf_counter() - began)
            return logits

        runner.forward = timed

    def write(self, prompt: str, params: SamplingParams, num_threads: int) -> None:
        torch.set_num_threads(num_threads)
        search = search_of(self.engine.drafter)
        before_s = 0.0 if search is None else search.spent_s
        result = self.engine.generate(prompt, params)
        self.texts.append(result.token_ids)
        self.num_tokens += result.stats.num_new_tokens
        self.num_rounds += result.stats.num_rounds
        self.num_drafted += result.stats.num_drafted
        self.num_accepted += result.stats.num_accepted
        self.decode_s.append(result.stats.decode_s)
        self.searched_s.append(0.0 if search is None else search.spent_s - before_s)


def contestants(sets: dict[str, str]) -> dict[str, DrafterConfig]:
    found: dict[str, DrafterConfig] = {"none": NoDrafter(), "paper search": paper_layer_skip()}
    found["paper search, our draft length"] = LayerSkip(search="paper", lookup=False)
    for weights in ("plain", "int8", "int4"):
        copy = "" if weights == "plain" else f" + {weights} copy"
        gated = LayerSkip(weights=weights, lookup=False)
        found[f"gated search{copy}"] = gated
        found[f"prepared{copy}"] = replace(gated, sets=sets[weights])
        found[f"prepared{copy}, never plain"] = replace(
            gated, sets=sets[weights], search="off", adaptive=False, min_mass=0.7
        )
        found[f"prepared{copy} + lookup"] = replace(gated, sets=sets[weights], lookup=True)
    found["prompt_lookup"] = PromptLookup()
    found["draft_model (another model)"] = DraftModel()
    return found


def prepare(config: EngineConfig, prompts: list[str], params: SamplingParams, folder: Path) -> dict[str, str]:
    """For each kind of draft weights a file with the sets that a search over these prompts left."""
    files = {}
    for weights in ("plain", "int8", "int4"):
        found = find_skip_sets(
            config, LayerSkip(weights=weights), lambda engine: [engine.encode(prompt) for prompt in prompts], params
        )
        files[weights] = str(keep_sets(config, found.sets, found.num_layers, folder / f"{weights}.json"))
        print(
            f"prepared {weights}: {len(found.sets[0].skipped)} sublayers, right {found.chance:.2f}, promises "
            f"{found.speedup:.2f}x after {found.num_evaluations} evaluations",
            flush=True,
        )
    return files


def measure(temperature: float, arguments: argparse.Namespace, folder: Path) -> list[Run]:
    is_paced = arguments.device != "cpu"
    num_threads = 1 if is_paced else arguments.threads
    config = EngineConfig(device=arguments.device, num_threads=num_threads)
    params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1, ignore_eos=True)
    prompts = read_prompts(arguments.num_prompts)
    others = read_prompts(PREPARED_ON, skip=arguments.num_prompts)
    files = prepare(config, others, params, folder)
    runs = [
        Run(name=name, engine=Engine(replace(config, drafter=drafter)))
        for name, drafter in contestants(files).items()
        if arguments.only is None or name in ("none", *arguments.only)
    ]
    gc.collect()
    for prompt in prompts:
        for run in runs:
            run.write(prompt, params, num_threads)
    for run in runs:
        run.engine.close()
    return runs


def row_of(arguments: argparse.Namespace, temperature: float, run: Run, none: Run) -> dict[str, object]:
    speed, plain = run.num_tokens / sum(run.decode_s), none.num_tokens / sum(none.decode_s)
    num_same = sum(mine == theirs for mine, theirs in zip(run.texts, none.texts, strict=True))
    search = search_of(run.engine.drafter)
    has_draft = search is not None
    num_passes = len(run.pass_s) if has_draft else 0
    shares = [searched / whole for searched, whole in zip(run.searched_s, run.decode_s, strict=True)]
    return {
        "on": arguments.device,
        "T": temperature,
        "drafter": run.name,
        "tok/s": f"{speed:.0f}",
        "over `none`": f"{speed / plain:.2f}",
        f"first {NUM_FIRST}": f"{sum(none.decode_s[:NUM_FIRST]) / sum(run.decode_s[:NUM_FIRST]):.2f}",
        "tokens/round": f"{run.num_tokens / run.num_rounds:.2f}",
        "drafted/round": f"{run.num_drafted / run.num_rounds:.1f}",
        "draft passes/round": f"{num_passes / run.num_rounds:.2f}" if has_draft else "-",
        "alpha": f"{run.num_accepted / num_passes:.2f}" if num_passes > 20 and "lookup" not in run.name else "-",
        "c": f"{median(run.pass_s) / median(none.pass_s):.2f}" if num_passes > 20 else "-",
        "skipped": len(search.skipped) if search is not None else "-",
        "search, of the run": f"{sum(run.searched_s) / sum(run.decode_s):.1%}" if has_draft else "-",
        "of a request, at most": f"{max(shares):.0%}" if has_draft else "-",
        "texts as none": f"{num_same}/{len(run.texts)}",
    }


def main() -> None:
    parser = standard_arguments(__doc__ or "", "layer_skip")
    parser.add_argument("--num-prompts", type=int, default=48)
    parser.add_argument("--num-new", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--only", nargs="+", help="names of contestants; none is always there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, object]] = []
    for temperature in arguments.temperatures:
        with tempfile.TemporaryDirectory() as folder:
            runs = measure(temperature, arguments, Path(folder))
        for run in runs:
            rows.append(row_of(arguments, temperature, run, runs[0]))
            print(rows[-1], flush=True)
    write_results(
        arguments,
        "Self-speculation: what finds the skipped sublayers, and what drafts",
        rows,
        [
            f"{arguments.num_prompts} held-out prompts x {arguments.num_new} tokens, contestants in turn. `first "
            f"{NUM_FIRST}`: speed over `none` in the first requests alone. alpha: tokens accepted for each draft pass "
            "(not given with lookup, whose tokens need none). c: median seconds of a draft pass over those of a plain "
            "pass. Search: its share of decoding time. Prepared: sets found on "
            f"{PREPARED_ON} other prompts.",
            "A paced device is a projection: passes take the stated time in proportion to the weights they read.",
        ],
    )


if __name__ == "__main__":
    main()
