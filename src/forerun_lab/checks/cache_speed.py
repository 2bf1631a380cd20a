"""The time of one row after a long text, by the format of the cache.

The text is never read: its keys and values are random numbers.

python -m forerun_lab.checks.cache_speed --target FILE.gguf [--context 16000]
"""

from statistics import median, quantiles
from typing import get_args

import torch

from forerun import EngineConfig
from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.model_spec import CacheFormat
from forerun.core.threads import inference
from forerun.engine.model_loading import Checkpoint
from forerun.model.pass_times import stand_in, time_pass
from forerun.model.runner import Runner
from forerun_lab.checks.common import standard_arguments, write_results

NUM_DISTINCT = 2000  # rows; a longer text repeats them


def filled(name: str, cache_format: CacheFormat, context: int) -> Runner:
    """A model behind a text of this length."""
    config = EngineConfig(target=name, max_length=context + 1, cache=cache_format)
    runner = Checkpoint.open(open_source(name), config).load(exactness="fast", capacity=context + 1)
    cache = runner.cache
    generator = torch.Generator().manual_seed(1)
    for layer in runner.spec.attention_layers:
        own = runner.spec.of_layer(layer)
        rows = torch.randn(min(context, NUM_DISTINCT), own.num_kv_heads, own.head_dim, generator=generator)
        for first in range(0, context, len(rows)):
            part = rows[: context - first]
            cache.write(layer, first, part, part.flip(0))
    stand_in(cache, context)
    return runner


def main() -> None:
    parser = standard_arguments(__doc__, "cache_speed")
    parser.add_argument("--target", default=BUILTIN_TARGET)
    parser.add_argument("--context", type=int, default=16_000, help="tokens before the row")
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with inference():
        runners = {name: filled(arguments.target, name, arguments.context) for name in get_args(CacheFormat)}
        times = {name: list[float]() for name in runners}
        for repeat in range(arguments.repeats + 1):
            for name, runner in runners.items():
                seconds = time_pass(runner, 1)
                if repeat:  # the first is slower
                    times[name].append(seconds)
    rows = [
        {
            "cache": name, "bytes of a token": runner.cache.bytes_per_slot,
            "median, ms": f"{1e3 * median(times[name]):.1f}", "least, ms": f"{1e3 * min(times[name]):.1f}",
        }
        for name, runner in runners.items()
    ]  # fmt: skip
    ratios = [plain / rounded for plain, rounded in zip(times["model"], times["int8"], strict=True)]
    low, middle, high = quantiles(ratios)
    notes = [
        f"One row after {arguments.context} tokens, in turn. The time with model over that with int8, of "
        f"{arguments.repeats} pairs: median {middle:.3f}, quartiles {low:.3f} and {high:.3f}."
    ]
    write_results(arguments, "One row after a long text, by the format of the cache", rows, notes)


if __name__ == "__main__":
    main()
