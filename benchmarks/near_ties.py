"""How much the logits of an eight-row pass differ from those of one-row passes, per dtype: the bounds of near-ties.

Counts, not times: runs anywhere. python benchmarks/near_ties.py
"""

import torch
from common import read_prompts, standard_arguments, write_results

from forerun import Engine, EngineConfig, NoDrafter, SamplingParams

ROWS = 8


def differences(dtype: str, num_prompts: int) -> torch.Tensor:
    """[N] absolute differences of all logits over prompts and their greedy continuations."""
    engine = Engine(EngineConfig(drafter=NoDrafter(), dtype=dtype))
    runner = engine._target
    found = []
    for prompt in read_prompts(num_prompts):
        params = SamplingParams(max_new_tokens=64, temperature=1.0, seed=1, ignore_eos=True)
        token_ids = [*engine.encode(prompt), *engine.generate(prompt, params).token_ids]
        for start in range(16, len(token_ids) - ROWS, 4 * ROWS):
            rows = token_ids[start : start + ROWS]
            runner.sync(token_ids[:start])
            wide = runner.extend(rows, num_logit_rows=ROWS)
            runner.sync(token_ids[:start])
            narrow = torch.cat([runner.extend([token], num_logit_rows=1) for token in rows])
            found.append((wide.double() - narrow.double()).abs().flatten())
    return torch.cat(found)


def main() -> None:
    parser = standard_arguments(__doc__, "near_ties", num_prompts=12)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        found = differences(dtype, arguments.num_prompts)
        rows.append({
            "dtype": dtype, "logits compared": len(found), "unequal": f"{(found > 0).double().mean():.4f}",
            "mean": f"{found.mean():.2e}", "largest": f"{found.max():.2e}",
        })  # fmt: skip
    notes = ["Built-in target, held-out prompts and 64 sampled tokens each, eight rows at once against one by one."]
    write_results(arguments, "Rounding between one row and eight", rows, notes)


if __name__ == "__main__":
    main()
