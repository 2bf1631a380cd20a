"""How much the logits of an eight-row pass differ from those of one-row passes, per dtype: the bounds of near-ties.

Nothing is timed, so any machine will do. python -m forerun_lab.checks.near_ties
"""

import argparse

import torch

from forerun import Engine, NoDrafter, SamplingParams
from forerun_lab.checks.common import config_of, questions_of, standard_arguments, write_results

ROWS = 8


def differences(dtype: str, arguments: argparse.Namespace) -> torch.Tensor:
    """[N] absolute differences of all logits over prompts and their greedy continuations."""
    engine = Engine(config_of(arguments, drafter=NoDrafter(), dtype=dtype))
    runner = engine._target
    found = []
    for _, prompt in questions_of(arguments, arguments.num_prompts):
        params = SamplingParams(max_new_tokens=arguments.num_new, temperature=1.0, seed=1, ignore_eos=True)
        token_ids = [*prompt, *engine.generate(prompt, params).token_ids]
        for start in range(16, len(token_ids) - ROWS, 4 * ROWS):
            rows = token_ids[start : start + ROWS]
            runner.sync(token_ids[:start])
            wide = runner.extend(rows, num_logit_rows=ROWS)
            runner.sync(token_ids[:start])
            narrow = torch.cat([runner.extend([token], num_logit_rows=1) for token in rows])
            found.append((wide.double() - narrow.double()).abs().flatten())
    return torch.cat(found)


def main() -> None:
    parser = standard_arguments(__doc__, "near_ties", num_prompts=12, num_new=64)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        found = differences(dtype, arguments)
        rows.append({
            "dtype": dtype, "logits compared": len(found), "unequal": f"{(found > 0).double().mean():.4f}",
            "mean": f"{found.mean():.2e}", "largest": f"{found.max():.2e}",
        })  # fmt: skip
    notes = [f"{arguments.num_new} sampled tokens after each prompt, eight rows at once against one by one."]
    write_results(arguments, "Rounding between one row and eight", rows, notes)


if __name__ == "__main__":
    main()
