"""forerun perplexity: llama-perplexity's definition, computed here once more from the model's own scores."""

import json
import math
from pathlib import Path

import pytest
import torch

from forerun import EngineConfig
from forerun.checkpoints.open import open_source
from forerun.engine.model_loading import Checkpoint
from forerun_lab.perplexity import Losses
from tests.cli.conftest import Run

LENGTH = 20
MODEL = "builtin-draft"


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("def read_lines(path):\n    return [line for line in open(path)]\n\n" * 8)
    return path


def by_hand(text: str, num_chunks: int) -> tuple[float, float, int]:
    """The perplexity, its error and the number of scored tokens, by one pass over each chunk."""
    source = open_source(MODEL)
    runner = Checkpoint.open(source, EngineConfig(target=MODEL)).load(exactness="fast", capacity=LENGTH)
    ids = source.tokenizer().encode(text)
    losses = []
    for start in range(0, num_chunks * LENGTH, LENGTH):
        chunk = ids[start : start + LENGTH]
        runner.forget()
        scores = runner.extend(chunk, num_logit_rows=LENGTH).double().log_softmax(-1)
        losses += [-scores[place - 1, chunk[place]] for place in range(LENGTH // 2 + 1, LENGTH)]
    values = torch.stack(losses)
    perplexity = math.exp(values.mean())
    return perplexity, perplexity * (values.std(correction=1) / math.sqrt(len(values))).item(), len(values)


def test_the_second_half_of_each_chunk_is_scored(run: Run, text: Path) -> None:
    flags = ("--ctx-size", str(LENGTH), "--threads", "1")
    shown = run("perplexity", MODEL, str(text), *flags, "--chunks", "3", "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    perplexity, error, num_tokens = by_hand(text.read_text(), 3)
    assert found["perplexity"] == pytest.approx(perplexity, rel=1e-4)
    assert found["error"] == pytest.approx(error, rel=1e-4)
    assert (found["chunks"], found["tokens"]) == (3, num_tokens)
    whole = run("perplexity", MODEL, str(text), *flags)
    assert whole.stdout.startswith("[1]")
    assert f"[3]{found['perplexity']:.4f}," in whole.stdout
    assert "PPL = " in whole.stdout.splitlines()[-1]


def test_each_chunk_begins_with_the_bos_token_of_a_model_that_has_one() -> None:
    from forerun_lab.perplexity import chunks_of

    class Encoder:
        def __init__(self, first: list[int]) -> None:
            self.tokenizer = self
            self._first = first

        def encode(self, text: str) -> list[int]:
            return self._first + [int(word) for word in text.split()]

    words = " ".join(map(str, range(10, 20)))
    assert chunks_of(Encoder([]), words, 5) == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]]  # type: ignore[arg-type]
    assert chunks_of(Encoder([1]), words, 5) == [[1, 10, 11, 12, 13], [1, 15, 16, 17, 18]]  # type: ignore[arg-type]


def test_the_error_is_that_of_a_mean() -> None:
    losses = Losses()
    losses.add([1.0, 2.0, 3.0])
    assert losses.perplexity == pytest.approx(math.exp(2.0))
    assert losses.error == pytest.approx(math.exp(2.0) * math.sqrt(2 / 3 / 2))
    losses = Losses()
    losses.add([1.0])
    assert losses.error == 0.0


def test_what_cannot_be_scored_is_refused(run: Run, text: Path, tmp_path: Path) -> None:
    for arguments, words in (
        ((str(tmp_path / "none"),), "cannot be read"),
        ((str(text), "--ctx-size", "3"), "at least 4 are needed"),
        ((str(text), "--ctx-size", "400"), "fewer than two chunks"),
        ((str(text), "--chunks", "0"), "must be >= 1"),
    ):
        shown = run("perplexity", MODEL, *arguments, "--threads", "1")
        assert shown.exit_code != 0, arguments
        assert words in shown.stderr, shown.stderr
