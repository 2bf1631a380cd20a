"""Self-drafting by skipped sublayers: compare searches and draft weights in one run.

python benchmarks/layer_skip.py --sets FOLDER [--num-prompts 48] [--device cpu] [--temperatures 0 1] [--target smollm2]

The target answers questions, all drafters in turn prompt by prompt. Searches start with nothing and
last over all prompts; "prepared" ones start with the sets that a search over other prompts has left. On a paced device
(--device paced:target=10ms) passes take stated times in proportion to the weights they read: a projection for models
whose passes take so long, with what the target really accepts.
"""

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from common import (
    WITHOUT_LOOKUP,
    Choice,
    Prompt,
    Run,
    answer_in_turn,
    ask,
    config_of,
    standard_arguments,
    write_results,
)  # fmt: skip

from forerun import DraftModel, Engine, EngineConfig, LayerSkip, NoDrafter, PromptLookup, SamplingParams
from forerun.core.drafter_config import paper_layer_skip
from forerun.drafting.layer_skip.drafter import search_of
from forerun.drafting.policies import Policies
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.skip_finder import find_skip_sets, keep_sets

NUM_FIRST = 10  # first requests, reported separately because the search makes them slowest
PREPARED_ON = 24  # other prompts
SURE_DRAFTS = Policies(tree=TreePolicy(looks_up=False, min_mass=0.7))


@dataclass(kw_only=True)
class SkippingRun(Run):
    """With the seconds of one-row passes (draft passes, or for plain decoding the target's own), and of searching."""

    pass_s: list[float] = field(default_factory=list)
    searched_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        drafter: Any = self.engine.drafter
        runner = getattr(drafter, "runner", self.engine._target)
        forward = runner.forward

        def timed(inputs: Any, *others: Any) -> Any:
            began = perf_counter()
            logits = forward(inputs, *others)
            if len(inputs.token_ids) == 1:
                self.pass_s.append(perf_counter() - began)
            return logits

        runner.forward = timed

    def write(self, prompt: Prompt, params: SamplingParams) -> None:
        search = search_of(self.engine.drafter)
        before_s = 0.0 if search is None else search.spent_s
        super().write(prompt, params)
        self.searched_s.append(0.0 if search is None else search.spent_s - before_s)


def drafters_to_try(sets: dict[str, str], draft: str) -> dict[str, Choice]:
    found: dict[str, Choice] = {"none": (NoDrafter(), None), "paper search": (paper_layer_skip(), None)}
    found["paper search, our draft length"] = LayerSkip(search="paper"), WITHOUT_LOOKUP
    for weights in ("plain", "int8", "int4"):
        copy = "" if weights == "plain" else f" + {weights} copy"
        prepared = LayerSkip(weights=weights, sets=sets[weights])
        found[f"gated search{copy}"] = LayerSkip(weights=weights), WITHOUT_LOOKUP
        found[f"prepared{copy}"] = prepared, WITHOUT_LOOKUP
        found[f"prepared{copy}, never plain"] = replace(prepared, search="off", adaptive=False), SURE_DRAFTS
        found[f"prepared{copy} + lookup"] = prepared, None
    found["prompt_lookup"] = PromptLookup(), None
    found["draft_model (another model)"] = DraftModel(model=draft), None
    return found


def prepare(config: EngineConfig, prompts: list[list[int]], params: SamplingParams, folder: Path) -> dict[str, str]:
    """For each kind of draft weights a file with the sets that a search over these prompts left; kept in the folder."""
    files = {}
    for weights in ("plain", "int8", "int4"):
        path = folder / f"{weights}.json"
        files[weights] = str(path)
        if path.exists():
            continue
        found = find_skip_sets(config, LayerSkip(weights=weights), lambda _: prompts, params)
        keep_sets(config.target, found.sets, found.num_layers, path)
        print(
            f"prepared {weights}: {len(found.sets[0].skipped)} sublayers, right {found.chance:.2f}, promises "
            f"{found.speedup:.2f}x after {found.num_evaluations} evaluations",
            flush=True,
        )
    return files


def measure(temperature: float, arguments: argparse.Namespace) -> list[SkippingRun]:
    is_paced = arguments.device != "cpu"
    num_threads = 1 if is_paced else arguments.threads
    config = config_of(arguments, device=arguments.device, num_threads=num_threads)
    params = SamplingParams(max_new_tokens=arguments.num_new, temperature=temperature, seed=1)
    prompts = [ids for _, ids in ask(arguments, arguments.num_prompts)]
    others = [ids for _, ids in ask(arguments, PREPARED_ON, skip=arguments.num_prompts)]
    files = prepare(config, others[:PREPARED_ON], params, arguments.sets)
    runs = [
        SkippingRun(
            name=name, engine=Engine(replace(config, drafter=drafter), policies=policies), num_threads=num_threads
        )
        for name, (drafter, policies) in drafters_to_try(files, arguments.draft).items()
        if arguments.only is None or name in ("none", *arguments.only)
    ]
    answer_in_turn(runs, prompts, params)
    return runs


def row_of(arguments: argparse.Namespace, temperature: float, run: SkippingRun, none: SkippingRun) -> dict[str, object]:
    num_rounds, num_accepted = run.total("num_rounds"), run.total("num_accepted")
    search = search_of(run.engine.drafter)
    has_draft = search is not None
    num_passes = len(run.pass_s) if has_draft else 0
    shares = [spent_s / result.stats.decode_s for spent_s, result in zip(run.searched_s, run.results, strict=True)]
    return {
        "on": arguments.device,
        "T": temperature,
        "drafter": run.name,
        "tok/s": f"{run.tokens_per_s:.0f}",
        "over `none`": f"{run.tokens_per_s / none.tokens_per_s:.2f}",
        f"first {NUM_FIRST}": f"{none.total('decode_s', NUM_FIRST) / run.total('decode_s', NUM_FIRST):.2f}",
        "tokens/round": f"{run.tokens_per_round:.2f}",
        "drafted/round": f"{run.total('num_drafted') / num_rounds:.1f}",
        "draft passes/round": f"{num_passes / num_rounds:.2f}" if has_draft else "-",
        "alpha": f"{num_accepted / num_passes:.2f}" if num_passes > 20 and "lookup" not in run.name else "-",
        "c": f"{median(run.pass_s) / median(none.pass_s):.2f}" if num_passes > 20 else "-",
        "skipped": "-" if search is None else len(search.strategy.skipped),
        "search, of the run": f"{sum(run.searched_s) / run.total('decode_s'):.1%}" if has_draft else "-",
        "of a request, at most": f"{max(shares):.0%}" if has_draft else "-",
        "texts as none": run.same_texts(none),
    }


def main() -> None:
    parser = standard_arguments(__doc__ or "", "layer_skip", num_prompts=48, num_new=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--sets", type=Path, required=True, help="folder for the prepared sets, which are kept there")
    parser.add_argument("--only", nargs="*", help="names of drafters; none is always there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, object]] = []
    for temperature in arguments.temperatures:
        runs = measure(temperature, arguments)
        for run in runs:
            rows.append(row_of(arguments, temperature, run, runs[0]))
            print(rows[-1], flush=True)
    write_results(
        arguments,
        "Self-speculation: what finds the skipped sublayers, and what drafts",
        rows,
        [
            f"{arguments.num_prompts} questions of each set x {arguments.num_new} tokens at most, drafters in turn. "
            f"`first {NUM_FIRST}`: speed over `none` in the first requests alone. alpha: tokens accepted for each "
            "draft pass (not given with lookup, whose tokens need none). c: median seconds of a draft pass over those "
            "of a plain pass. Search: its share of decoding time. Prepared: sets found on "
            f"{PREPARED_ON} other prompts.",
            "A paced device is a projection: passes take the stated time in proportion to the weights they read.",
        ],
    )


if __name__ == "__main__":
    main()
