"""A GGUF file of a newer family gives the logits of the folder that it was made from."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.families.mamba2 import NO_LIMITS
from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.checkpoints.open import open_source
from forerun.checkpoints.source import CheckpointSource
from forerun.core.mixers import Mamba2, ShortConvolution
from forerun.core.model_spec import ModelSpec, SigmoidRouting
from forerun.model.runner import Runner
from tests.marks import rest_slow

pytest.importorskip("transformers")
pytest.importorskip("gguf")
from tests.golden.random_families import FAMILIES, LENGTH
from tests.golden.random_gguf import ARCHITECTURES, write_gguf

MAX_ERROR = 2e-5  # relative to the largest logit: the file holds float32, and numbers such as eps in its keys
# Seeds of models that a GGUF file can describe, where most cannot be; the first seed of others.
SEEDS = {"lfm2_moe": (44, 57, 114, 148), "granite_mamba": (18, 4, 5, 25), "nemotron_h": (3, 8, 12, 37)}
FIRST = {"granitemoehybrid": 2, "lfm2": 1}
CASES = [
    case
    for name in dict.fromkeys([*ARCHITECTURES, *SEEDS])
    for case in rest_slow([(name, seed) for seed in SEEDS.get(name, range(FIRST.get(name, 0), 10))], 1)
]
MADE_OF = {
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5_moe",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "granitemoehybrid": "granite_hybrid",
}


def logits_of(source: CheckpointSource, token_ids: list[int]) -> Tensor:
    spec = source.spec().for_length(LENGTH)
    dtype = torch.float64
    runner = Runner(
        spec, source.weights(dtype=dtype), backend=REFERENCE, capacity=LENGTH, dtype=dtype, device="cpu"
    )  # fmt: skip
    return runner.extend(token_ids, num_logit_rows=LENGTH)


def why_indescribable(spec: ModelSpec) -> str:
    """Why no GGUF file can describe a model; empty if one can."""
    mixer = spec.mixer
    if isinstance(mixer, ShortConvolution) and mixer.has_bias:
        return "no biases of short convolutions"
    if isinstance(mixer, Mamba2) and (mixer.has_product_bias or mixer.step_limits != NO_LIMITS or not mixer.has_bias):
        return "no biases of Mamba 2's products, no limits of its steps, always a bias of its convolution"
    if isinstance(mixer, Mamba2) and not spec.unrotated_layers:
        return "no rotation beside Mamba 2"
    if spec.family == "lfm2_moe" and (spec.routing != SigmoidRouting(eps=1e-6) or not spec.tied_embeddings):
        return "no other routing in this family, and no head of its own"
    if spec.mlp_only and spec.num_experts and spec.dense_layers:
        return "no layers without experts in this family"
    return ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_logits_equal_those_of_the_folder(case: tuple[str, int], tmp_path: Path) -> None:
    family, seed = case
    model = FAMILIES[MADE_OF.get(family, family)].save(seed, tmp_path)
    folder = open_source(str(tmp_path))
    rng = random.Random(seed)
    unrotated = folder.spec().unrotated_layers
    if unrotated not in ((), (3,)) and folder.spec().mamba is None:  # of five layers every fourth
        pytest.skip("a GGUF file cannot say which layers have no rotation")
    if why := why_indescribable(folder.spec()):
        pytest.skip(why)
    path = write_gguf(tmp_path, tmp_path / "model.gguf", folder.spec(), model.config.to_dict())
    file = GgufCheckpoint(name="x", path=path)
    token_ids = [rng.randrange(folder.spec().vocab_size) for _ in range(LENGTH)]
    expected = logits_of(folder, token_ids)
    assert (logits_of(file, token_ids) - expected).abs().max() <= MAX_ERROR * expected.abs().max()
    assert file.spec().num_parameters == folder.spec().num_parameters
