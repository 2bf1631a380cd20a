"""Check the speed-up in an answer's statistics, by running every drafter and plain decoding in turn.

python benchmarks/printed_speedup.py [--models builtin,FOLDER] [--num-prompts 5] [--repeats 7] [--num-new 128]

The truth of an answer is plain decoding's seconds over its own, where plain decoding is that of an engine without a
drafter, timed just before and just after. What is told has to lie within 10 % of it each time, or not be told.
"""

import argparse
from pathlib import Path
from statistics import median

from common import standard_arguments, write_results

from forerun import DraftModel, Engine, EngineConfig, LayerSkip, NoDrafter, Parallel, PromptLookup, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, DrafterConfig

PROMPTS = (
    'def read_lines(path):\n    """Return the lines of a text file without their line ends."""',
    "Once upon a time in a small village there lived",
    "The three most important rules of good writing are",
    "class Stack:\n    def __init__(self):\n",
    "Dear Sir or Madam, I am writing to you because",
)
WITHIN = 0.10


def drafters_of(model: str) -> dict[str, DrafterConfig]:
    """Every drafter that this model can have."""
    own: dict[str, DrafterConfig] = {
        "prompt_lookup": PromptLookup(),
        "prompt_lookup, fixed width": PromptLookup(adaptive=False),
        "layer_skip": LayerSkip(),
        "layer_skip, int4 copy": LayerSkip(weights="int4"),
    }
    if model != BUILTIN_TARGET:
        return own | {"parallel, of itself": Parallel(draft=LayerSkip())}
    return own | {"draft_model": DraftModel(), "parallel": Parallel()}


def seconds(plain: Engine, prompt: str, params: SamplingParams) -> float:
    """Seconds of plain decoding, of the second of two answers; the first finds another engine's data in the caches."""
    return [plain.generate(prompt, params).stats.decode_s for _ in range(2)][1]


def measure(model: str, name: str, plain: Engine, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """A row for each prompt."""
    params = SamplingParams(
        max_new_tokens=arguments.num_new, temperature=arguments.temperature, seed=arguments.seed, ignore_eos=True
    )
    rows = []
    config = EngineConfig(target=model, drafter=drafters_of(model)[name], measures_speedup=True)
    with Engine(config) as engine:
        engine.generate(PROMPTS[0], params)  # warm-up
        for number, prompt in enumerate(PROMPTS[: arguments.num_prompts]):
            ratios, told = [], []
            before = seconds(plain, prompt, params)
            for _ in range(arguments.repeats):
                result = engine.generate(prompt, params)
                after = seconds(plain, prompt, params)
                ratios.append((before + after) / 2 / result.stats.decode_s)
                told.append(result.stats.speedup)
                before = after
            pairs = [(one.value, ratio) for one, ratio in zip(told, ratios, strict=True) if one is not None]
            errors = [round(value / ratio - 1, 4) for value, ratio in pairs]
            rows.append({
                "model": Path(model).name,
                "drafter": name,
                "prompt": number,
                "tokens per round": round(result.stats.tokens_per_round, 2),
                "truth": round(median(ratios), 3),
                "truth from": round(min(ratios), 3),
                "truth to": round(max(ratios), 3),
                "told": [None if one is None else round(one.value, 3) for one in told],
                "errors": errors,
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = standard_arguments(__doc__ or "", "printed_speedup", num_prompts=5, num_new=128)
    parser.add_argument("--models", default=BUILTIN_TARGET)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models.split(","):
        with Engine(EngineConfig(target=model, drafter=NoDrafter())) as plain:
            plain.generate(PROMPTS[0], SamplingParams(max_new_tokens=arguments.num_new, ignore_eos=True))
            for name in drafters_of(model):
                rows += measure(model, name, plain, arguments)
    errors = [abs(error) for row in rows for error in row["errors"]]  # type: ignore[attr-defined]
    num_told, num_answers = len(errors), sum(len(row["told"]) for row in rows)  # type: ignore[arg-type,misc]
    num_close = sum(error <= WITHIN for error in errors)
    note = (
        f"{num_told} of {num_answers} answers told a speed-up, {num_close} of them within 10 % of the truth; median "
        f"error {median(errors):.1%}, largest {max(errors):.1%}."
    )
    write_results(arguments, "The speed-up that statistics tell, and the true one", rows, [note])


if __name__ == "__main__":
    main()
