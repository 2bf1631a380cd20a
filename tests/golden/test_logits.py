"""Every family computes what transformers computes from the same folder."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.load import load_weights
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.model.backend import ModelBackend
from forerun.model.runner import Runner
from tests.golden.families import FAMILIES, Golden
from tests.model.kernel_sets import KERNEL_SETS

NUM_PROMPT = 48
NUM_NEW = 64
MAX_ERROR = 2e-5
KERNELS = pytest.mark.parametrize("kernels", KERNEL_SETS)


@pytest.fixture(scope="session", params=list(FAMILIES))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """One checkpoint of each family per test run, with the transformers model it was written from."""
    return FAMILIES[request.param].save(tmp_path_factory.mktemp(request.param))


def build_runner(golden: Golden, kernels: ModelBackend) -> Runner:
    spec = read_model_spec(golden.folder)
    weights = load_weights(golden.folder, spec, dtype=torch.float32)
    capacity = NUM_PROMPT + NUM_NEW
    return Runner(spec, LoadedWeights(weights), backend=kernels, capacity=capacity, dtype=torch.float32, device="cpu")


def random_prompt(golden: Golden, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(golden.model.config.vocab_size, (NUM_PROMPT,), generator=generator).tolist()


@torch.inference_mode()
def reference_logits(golden: Golden, token_ids: list[int]) -> Tensor:
    """[T, V] as transformers computes them."""
    logits: Tensor = golden.model(torch.tensor([token_ids])).logits[0]
    return logits


@KERNELS
def test_logits_equal_those_of_transformers(golden: Golden, kernels: ModelBackend) -> None:
    prompt = random_prompt(golden, seed=0)
    expected = reference_logits(golden, prompt)
    actual = build_runner(golden, kernels).extend(prompt, num_logit_rows=NUM_PROMPT)
    assert expected.std() > 1.0, "the logits are too flat to tell models apart"
    assert (actual - expected).abs().max() <= MAX_ERROR


@KERNELS
def test_greedy_text_equals_that_of_transformers(golden: Golden, kernels: ModelBackend) -> None:
    token_ids = random_prompt(golden, seed=7)
    runner = build_runner(golden, kernels)
    logits = runner.extend(token_ids, num_logit_rows=1)
    for _ in range(NUM_NEW - 1):
        token_ids.append(int(logits[-1].argmax()))
        logits = runner.extend(token_ids[-1:], num_logit_rows=1)
    token_ids.append(int(logits[-1].argmax()))
    chosen = reference_logits(golden, token_ids[:-1])[NUM_PROMPT - 1 :].argmax(-1).tolist()
    assert chosen == token_ids[NUM_PROMPT:]
    assert len(set(chosen)) > 8, "the text is stuck in a rut, so equality says little"


def test_shards_written_by_transformers_are_read(golden: Golden, tmp_path: Path) -> None:
    golden.model.save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    spec = read_model_spec(tmp_path)
    whole, shards = (load_weights(folder, spec, dtype=torch.float32) for folder in (golden.folder, tmp_path))
    assert whole.keys() == shards.keys()
    assert all(torch.equal(whole[name], shards[name]) for name in whole)
