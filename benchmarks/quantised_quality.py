"""What weights of 8 and 4 bits cost in quality, and what they save: the built-in pair on text it was not trained on.

The text is the training's held-out share of Python files, as they are installed here.
PYTHONPATH=. python benchmarks/quantised_quality.py
"""

import math
from collections.abc import Iterator
from time import perf_counter

import torch
from common import numbers, standard_arguments, write_results
from torch.nn import functional

from forerun import EngineConfig
from forerun.bench.run.ceilings import bytes_per_step
from forerun.checkpoints.open import open_source
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET
from forerun.engine.model_loading import Checkpoint
from forerun.model.measure import measure_pace
from forerun.model.runner import Runner
from training.corpus import python_documents

DTYPES = ("float32", "bfloat16", "int8", "int4")
WINDOW = 512  # tokens that are read from an empty cache
END_OF_TEXT = 0
PACE_ROWS = (1, 8)


class Score:
    """Sums over tokens of one model in one dtype."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self.loss = self.divergence = self.num_same = 0.0

    def add(self, scores_TV: torch.Tensor, reference_TV: torch.Tensor, next_T: torch.Tensor) -> None:
        """Log-probabilities of a window, those of float32, and the tokens that came."""
        self.num_tokens += len(next_T)
        self.loss += functional.nll_loss(scores_TV, next_T, reduction="sum").item()
        self.divergence += functional.kl_div(scores_TV, reference_TV, log_target=True, reduction="sum").item()
        self.num_same += (scores_TV.argmax(-1) == reference_TV.argmax(-1)).sum().item()

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.num_tokens)


def windows(num_windows: int) -> Iterator[list[int]]:
    """Stretches of WINDOW tokens and the one after, spread evenly over the held-out text."""
    tokenizer = open_source(BUILTIN_TARGET).tokenizer()
    held_out = [document for document in python_documents() if document.is_held_out]
    ids = [token for document in held_out for token in (*tokenizer.encode(document.text), END_OF_TEXT)]
    spacing = (len(ids) - WINDOW - 1) // num_windows
    return (ids[number * spacing : number * spacing + WINDOW + 1] for number in range(num_windows))


def load(name: str, dtype: str) -> tuple[Checkpoint, Runner, float]:
    """A model in a dtype, and the seconds that took."""
    config = EngineConfig(target=name, **numbers(dtype))
    checkpoint = Checkpoint.open(open_source(name), config)
    began = perf_counter()
    runner = checkpoint.load(config, exactness="fast", capacity=WINDOW, pace=None, on_progress=None)
    return checkpoint, runner, perf_counter() - began


def log_probs(runner: Runner, token_ids: list[int]) -> torch.Tensor:
    """[T, V] after each of these tokens, read from an empty cache."""
    runner.forget()
    return runner.extend(token_ids, num_logit_rows=len(token_ids)).float().log_softmax(-1)


def rows_of(name: str, texts: list[list[int]]) -> Iterator[dict[str, object]]:
    """One line of the table for each dtype."""
    loaded = {dtype: load(name, dtype) for dtype in DTYPES}
    scores = {dtype: Score() for dtype in DTYPES}
    for text in texts:
        reference_TV, next_T = log_probs(loaded["float32"][1], text[:-1]), torch.tensor(text[1:])
        for dtype, score in scores.items():
            found_TV = reference_TV if dtype == "float32" else log_probs(loaded[dtype][1], text[:-1])
            score.add(found_TV, reference_TV, next_T)
    for dtype, score in scores.items():
        checkpoint, runner, load_s = loaded[dtype]
        pace = measure_pace(runner, PACE_ROWS, context=256, budget_s=1.0)
        num_bytes = bytes_per_step(checkpoint.spec, checkpoint.dtype.itemsize, 0, checkpoint.weight_format)
        yield {
            "model": name, "dtype": dtype, "the rest in": str(checkpoint.dtype).removeprefix("torch."),
            "perplexity": f"{score.perplexity:.3f}",
            "over float32": f"{100 * (score.perplexity / scores['float32'].perplexity - 1):+.2f} %",
            "divergence": f"{score.divergence / score.num_tokens:.5f}",
            "same choice": f"{score.num_same / score.num_tokens:.4f}",
            "MB a step": f"{num_bytes / 1e6:.2f}",
            **{f"ms, {rows} row{'s' * (rows > 1)}": f"{1e3 * pace.step_s(rows):.2f}" for rows in PACE_ROWS},
            "load s": f"{load_s:.2f}",
        }  # fmt: skip


def main() -> None:
    parser = standard_arguments(__doc__, "quantised_quality")
    parser.add_argument("--num-windows", type=int, default=64)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = list(windows(arguments.num_windows))
    rows = [row for name in (BUILTIN_TARGET, BUILTIN_DRAFT) for row in rows_of(name, texts)]
    notes = [
        f"{len(texts)} windows of {WINDOW} tokens each. Divergence: Kullback-Leibler from float32, nats a token. Same "
        "choice: how often the likeliest token is that of float32. MB a step: weights that one row must read. Passes "
        "after 256 tokens, lower quartile.",
    ]
    write_results(arguments, "Quality of quantised weights", rows, notes)


if __name__ == "__main__":
    main()
