"""A model of every family as a GGUF file gives the logits of the folder it was made from.

The writer orders rows as llama.cpp's converter does; llama-server reads its files in tests/bench/peers.
"""

from pathlib import Path
from typing import Final

import pytest
import torch

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.open import open_source
from forerun.checkpoints.source import CheckpointSource
from forerun.model.runner import Runner
from tests.golden.families import FAMILIES

pytest.importorskip("gguf")
from tests.golden.gguf_writer import write_gguf

NUM_TOKENS: Final = 64  # twice the context that the families' rotary scalings stretch
MAX_ERROR: Final = 1e-5
FAMILY_NAMES: Final = [name for name in FAMILIES if name != "llama_yarn_mscale"]  # GGUF files know no `truncate`


def logits_of(source: CheckpointSource, token_ids: list[int]) -> torch.Tensor:
    runner = Runner(
        source.spec(),
        source.weights(dtype=torch.float32),
        backend=REFERENCE,
        capacity=NUM_TOKENS,
        dtype=torch.float32,
        device="cpu",
    )
    return runner.extend(token_ids, num_logit_rows=NUM_TOKENS)


@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_logits_equal_those_of_the_folder(family: str, tmp_path: Path) -> None:
    golden = FAMILIES[family].save(tmp_path)
    path = tmp_path / "model.gguf"
    write_gguf(tmp_path, path)
    folder = open_source(str(tmp_path))
    file = GgufCheckpoint(name="x", path=path)
    assert file.spec().tied_embeddings == folder.spec().tied_embeddings
    assert file.spec().num_parameters == folder.spec().num_parameters
    generator = torch.Generator().manual_seed(3)
    token_ids = torch.randint(golden.model.config.vocab_size, (NUM_TOKENS,), generator=generator).tolist()
    expected = logits_of(folder, token_ids)
    assert expected.std() > 1.0, "the logits are too flat to tell models apart"
    assert (logits_of(file, token_ids) - expected).abs().max() <= MAX_ERROR


def test_llama3_frequencies_are_told_by_divisors(tmp_path: Path) -> None:
    FAMILIES["llama3"].save(tmp_path)
    write_gguf(tmp_path, tmp_path / "model.gguf")
    rope = GgufCheckpoint(name="x", path=tmp_path / "model.gguf").spec().rope
    assert rope.kind == "default"
    assert len(set(rope.divisors)) > 1
