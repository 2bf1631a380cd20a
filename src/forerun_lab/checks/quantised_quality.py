"""The quality lost with 8-bit and 4-bit weights and with 8-bit keys and values on given text.

Weights are rounded on loading, or come from GGUF files.

python -m forerun_lab.checks.quantised_quality --text FILE [FILE ...] [--models FOLDER FILE.gguf ...]
    [--caches model int8]
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from torch.nn import functional

from forerun import EngineConfig
from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.model_spec import CacheFormat
from forerun.engine.model_loading import Checkpoint
from forerun.model.runner import Runner
from forerun_lab.checks.common import numbers, standard_arguments, write_results
from forerun_lab.perplexity import Losses

DTYPES = ("float32", "bfloat16", "int8", "int4")
WINDOW = 512  # tokens read at once, from an empty cache


class Score:
    """Sums over tokens of one model in one dtype."""

    def __init__(self) -> None:
        self.losses = Losses()
        self._divergence = self._num_same = 0.0

    def add(self, scores_TV: torch.Tensor, reference_TV: torch.Tensor, next_T: torch.Tensor) -> None:
        """Add a window: its log-probabilities, those in float32, and the actual next tokens."""
        self.losses.add(functional.nll_loss(scores_TV, next_T, reduction="none").tolist())
        self._divergence += functional.kl_div(scores_TV, reference_TV, log_target=True, reduction="sum").item()
        self._num_same += (scores_TV.argmax(-1) == reference_TV.argmax(-1)).sum().item()

    @property
    def divergence(self) -> float:
        """Nats a token."""
        return self._divergence / self.losses.num_tokens

    @property
    def same_choice(self) -> float:
        """The share of places where the likeliest token is the reference's."""
        return self._num_same / self.losses.num_tokens


def windows(arguments: argparse.Namespace) -> list[list[int]]:
    """Windows of WINDOW + 1 tokens, the same number from every text, spread evenly over it."""
    tokenizer = open_source(arguments.models[0]).tokenizer()
    found = []
    for path in arguments.text:
        ids = tokenizer.encode(path.read_text(encoding="utf-8"))
        spacing = (len(ids) - WINDOW - 1) // arguments.num_windows
        found += [ids[place * spacing : place * spacing + WINDOW + 1] for place in range(arguments.num_windows)]
    return found


def load(name: str, dtype: str, cache: CacheFormat) -> tuple[Checkpoint, Runner]:
    """A model in a dtype, with a cache of a format."""
    config = EngineConfig(target=name, cache=cache, **numbers(dtype))
    checkpoint = Checkpoint.open(open_source(name), config)
    runner = checkpoint.load(exactness="fast", capacity=WINDOW)
    return checkpoint, runner


def log_probs(runner: Runner, token_ids: list[int]) -> torch.Tensor:
    """[T, V] after each of these tokens, read from an empty cache."""
    runner.forget()
    return runner.extend(token_ids, num_logit_rows=len(token_ids)).float().log_softmax(-1)


def rows_of(models: list[str], caches: list[CacheFormat], texts: list[list[int]]) -> Iterator[dict[str, object]]:
    """One line of the table for each model, dtype and cache, beside the first one."""
    kinds = [
        (name, dtype, cache)
        for name in models
        for dtype in (["auto"] if name.endswith(".gguf") else DTYPES)
        for cache in caches
    ]
    loaded = {kind: load(*kind) for kind in kinds}
    scores = {kind: Score() for kind in kinds}
    reference = kinds[0]
    for text in texts:
        reference_TV = log_probs(loaded[reference][1], text[:-1])
        next_T = torch.tensor(text[1:])
        for kind, score in scores.items():
            found_TV = reference_TV if kind == reference else log_probs(loaded[kind][1], text[:-1])
            score.add(found_TV, reference_TV, next_T)
    for (name, dtype, cache), score in scores.items():
        yield {
            "model": Path(name).name, "dtype": dtype, "cache": cache,
            "the rest in": str(loaded[name, dtype, cache][0].dtype).removeprefix("torch."),
            "perplexity": f"{score.losses.perplexity:.3f}",
            "over the first": f"{100 * (score.losses.perplexity / scores[reference].losses.perplexity - 1):+.2f} %",
            "divergence": f"{score.divergence:.5f}",
            "same choice": f"{score.same_choice:.4f}",
        }  # fmt: skip


def main() -> None:
    parser = standard_arguments(__doc__, "quantised_quality")
    parser.add_argument("--models", nargs="+", default=[BUILTIN_TARGET], help="the first is compared with, in float32")
    parser.add_argument("--text", nargs="+", type=Path, required=True)
    parser.add_argument("--caches", nargs="+", default=["model"], choices=get_args(CacheFormat))
    parser.add_argument("--num-windows", type=int, default=32, help="of each text")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = windows(arguments)
    rows = list(rows_of(arguments.models, arguments.caches, texts))
    notes = [
        f"{len(texts)} windows of {WINDOW} tokens each of {', '.join(path.name for path in arguments.text)}. "
        "Divergence: Kullback-Leibler from the first line, nats a token. Same choice: how often the likeliest token "
        "is that of the first line.",
    ]
    write_results(arguments, "Quality of quantised weights", rows, notes)


if __name__ == "__main__":
    main()
