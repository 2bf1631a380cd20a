"""A draft with a part of the tokens says the same when it is written with all of them."""

import random
from pathlib import Path

import pytest
import torch

from forerun import EngineConfig
from forerun.bench.peers.whole_draft import whole_draft
from forerun.checkpoints.open import open_source
from forerun.engine.model_loading import Checkpoint
from tests.drafting.mapped import random_map, write_mapped

NUM_TOKENS = 64
NOT_FOR_THE_CHOICE = 20.0  # natural units below the likeliest token: a chance of 2e-9


def logits_of(folder: Path, token_ids: list[int]) -> torch.Tensor:
    config = EngineConfig(target=str(folder), dtype="float32", kernels="torch")
    checkpoint = Checkpoint.open(open_source(str(folder)), config)
    runner = checkpoint.load(config, exactness="fast", capacity=NUM_TOKENS, pace=None, on_progress=None)
    return runner.extend(token_ids, num_logit_rows=len(token_ids))


@pytest.mark.parametrize("seed", range(3))
def test_known_tokens_have_their_logits_and_unknown_ones_lose(tmp_path: Path, seed: int) -> None:
    source, rng = open_source("builtin-draft"), random.Random(seed)
    num_target = source.spec().vocab_size
    vocabulary = random_map(rng, num_target, num_draft=num_target // 4)
    small = write_mapped(tmp_path / "small", source.path, vocabulary)
    whole = whole_draft(str(small), tmp_path / "cache")
    text = source.tokenizer().encode("def fibonacci(n):\n    return n if n < 2 else ")
    text += [rng.randrange(num_target) for _ in range(NUM_TOKENS - len(text))]
    here_TV, there_TW = logits_of(whole, text), logits_of(small, vocabulary.read(text))
    torch.testing.assert_close(here_TV[:, vocabulary.target_ids.long()], there_TW, atol=1e-4, rtol=1e-5)
    lead_T = there_TW.max(1).values - here_TV[:, ~vocabulary.is_known].max(1).values
    assert lead_T.min() > NOT_FOR_THE_CHOICE


def test_a_draft_is_written_once_and_one_with_all_tokens_is_itself(tmp_path: Path) -> None:
    source = open_source("builtin-draft")
    assert whole_draft("builtin-draft", tmp_path) == source.path
    small = write_mapped(
        tmp_path / "small", source.path, random_map(random.Random(1), source.spec().vocab_size, num_draft=512)
    )
    first = whole_draft(str(small), tmp_path)
    written = (first / "config.json").stat().st_mtime_ns
    assert whole_draft(str(small), tmp_path) == first
    assert (first / "config.json").stat().st_mtime_ns == written
