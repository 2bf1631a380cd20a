"""Tokens per round of a draft head's tree that knows the target's noise, of one that does not, and of a chain.

Nothing is timed, so any machine will do. python -m forerun_lab.checks.head_trees --draft HEAD
"""

import argparse
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from forerun import Engine
from forerun.core.drafter_config import DraftHead
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.policies import BEST_TREE, Policies
from forerun_lab.checks.common import config_of, questions_of, standard_arguments, tokens_per_round, write_results

WIDTHS: Final = (8, 16, 32)
TEMPERATURES: Final = (0.0, 0.6, 1.0)
KINDS: Final = {"with the noise": True, "without": False}


def engine_of(arguments: argparse.Namespace, width: int, *, knows_noise: bool, is_chain: bool) -> Engine:
    head = DraftHead(model=arguments.draft, verify_width=width, depth=width - 1, adaptive=False)
    policies = Policies(tree=replace(BEST_TREE, knows_noise=knows_noise, looks_up=False))
    engine = Engine(config_of(arguments, drafter=head), policies=policies)
    if is_chain:
        drafter = engine.drafting.held["draft_head"]
        assert isinstance(drafter, DraftModelDrafter), "a head of fixed widths"
        drafter._guessed.policy = replace(drafter._guessed.policy, num_children=1)
    return engine


def main() -> None:
    parser = standard_arguments(__doc__, "head_trees", num_prompts=24, num_new=128)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    prompts = [prompt for _, prompt in questions_of(arguments, arguments.num_prompts)]
    rows = []
    for width in WIDTHS:
        for name, knows_noise in KINDS.items():
            for is_chain in (False, True):
                engine = engine_of(arguments, width, knows_noise=knows_noise, is_chain=is_chain)
                measured = partial(tokens_per_round, engine, prompts, num_new=arguments.num_new)
                shape = "chain" if is_chain else "tree"
                found = {f"T={temperature}": f"{measured(temperature):.2f}" for temperature in TEMPERATURES}
                rows.append({"rows": width, "drafts": f"{shape} {name}", **found})
                engine.close()
    notes = [f"{len(prompts)} questions, {arguments.num_new} tokens each; new tokens over rounds."]
    write_results(arguments, "Trees of a draft head, with and without the target's noise", rows, notes)


if __name__ == "__main__":
    main()
