"""Tokens per round at temperature 1: children ranked by log q + g against children ranked by log q, built-in pair.

Counts, not times: runs anywhere. python benchmarks/noise_aware_children.py [--num-prompts 60]
"""

from common import Run, read_prompts, standard_arguments, write_results

from forerun import DraftModel, Engine, EngineConfig, SamplingParams
from forerun.drafting.policies import Policies
from forerun.drafting.tree_policy import TreePolicy


def tokens_per_round(noise_aware: bool, children: int, lookup: bool, arguments) -> float:
    tree = TreePolicy(knows_noise=noise_aware, num_children=children, looks_up=lookup)
    config = EngineConfig(drafter=DraftModel(), num_threads=arguments.threads)
    engine = Engine(config, policies=Policies(tree=tree))
    run = Run(name="", engine=engine, num_threads=arguments.threads)
    for number, prompt in enumerate(read_prompts(arguments.num_prompts)):
        run.write(prompt, SamplingParams(max_new_tokens=96, temperature=1.0, seed=number, ignore_eos=True))
    return run.tokens_per_round


def main() -> None:
    parser = standard_arguments(__doc__, "noise_aware_children", num_prompts=60)
    arguments = parser.parse_args()
    rows = []
    for lookup in (False, True):
        for children in (2, 4):
            aware, plain = (tokens_per_round(flag, children, lookup, arguments) for flag in (True, False))
            rows.append({
                "children": children, "lookup": lookup, "tokens/round, log q + g": f"{aware:.3f}",
                "tokens/round, log q": f"{plain:.3f}", "ratio": f"{aware / plain:.3f}",
            })  # fmt: skip
    notes = [
        f"{arguments.num_prompts} held-out prompts x 96 tokens at temperature 1, default widths and depth, same seeds."
    ]
    write_results(arguments, "Children that know the target's noise", rows, notes)


if __name__ == "__main__":
    main()
