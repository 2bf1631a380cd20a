"""Tokens per round of every drafter with fixed widths, by data set: how often each is right, whatever that costs.

Nothing is timed, so any machine will do. python -m forerun_lab.checks.fixed_rounds --target TARGET --draft DRAFT
"""

import torch

from forerun import DraftModel, Engine, LayerSkip, PromptLookup, TokenRecycling
from forerun_lab.checks.common import config_of, questions_of, standard_arguments, tokens_per_round, write_results


def main() -> None:
    parser = standard_arguments(__doc__, "fixed_rounds", num_prompts=4, num_new=64)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--without", nargs="*", default=[], help="drafters to leave out")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    drafters = {
        "draft_model, tree of 16": DraftModel(model=arguments.draft, adaptive=False),
        "layer_skip": LayerSkip(adaptive=False),
        "prompt_lookup": PromptLookup(adaptive=False),
        "recycling": TokenRecycling(adaptive=False),
    }
    sets = arguments.data.split(",")
    among = [prompt for _, prompt in questions_of(arguments, arguments.num_prompts)]  # of each set in turn
    rows = []
    for name, drafter in drafters.items():
        if name.partition(",")[0] in arguments.without:
            continue
        with Engine(config_of(arguments, drafter=drafter)) as engine:
            for temperature in arguments.temperature:
                row: dict[str, object] = {"drafter": name, "T": temperature}
                for place, dataset in enumerate(sets):
                    found = tokens_per_round(engine, among[place :: len(sets)], temperature, arguments.num_new)
                    row[dataset] = f"{found:.2f}"
                rows.append(row)
    note = f"{arguments.num_prompts} questions of each set, {arguments.num_new} tokens each; new tokens over rounds."
    write_results(arguments, f"Guesses for {arguments.target.rpartition('/')[2]} with fixed widths", rows, [note])


if __name__ == "__main__":
    main()
