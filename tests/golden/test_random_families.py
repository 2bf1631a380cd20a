"""Random models of every family: the logits of transformers in float64, in a prompt, token by token, and in a tree."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.dtypes import NATIVE_MECHANISMS
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.checkpoints.open import open_source
from forerun.core.mechanisms import mechanisms_of
from forerun.model.backend import ModelBackend
from forerun.model.runner import Runner
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.marks import rest_slow
from tests.tiny import in_parts, tree_logits

pytest.importorskip("transformers")
from tests.golden.random_families import FAMILIES, LENGTH, golden_logits

NUM_PROMPT = LENGTH - 12
NUM_DECODED = 5
NUM_TREE = 12
MAX_ERROR = 1e-9
MAX_ERROR_FLOAT32 = 1e-4  # relative to the largest logit
CASES = [case for name in FAMILIES for case in rest_slow([(name, seed) for seed in range(40)], 1)]
MIXED = ("qwen3_5", "qwen3_next", "lfm2", "lfm2_moe", "granite_mamba", "nemotron_h")
LONGEST = 300  # tokens of a text whose last rows read states of later places than its beginning
LONG_CASES = [case for name in MIXED for case in rest_slow([(name, seed) for seed in range(40)], 1)]
KERNELS: Sequence[tuple[ModelBackend, torch.dtype]] = ((REFERENCE, torch.float64), (FUSED, torch.float64))


def runner_of(folder: Path, kernels: ModelBackend, dtype: torch.dtype, capacity: int = 2 * LENGTH) -> Runner:
    source = open_source(str(folder))
    return Runner(
        source.spec().for_length(LENGTH), source.weights(dtype=dtype), backend=kernels, capacity=capacity,
        dtype=dtype, device="cpu",
    )  # fmt: skip


def largest_difference(model: Any, runner: Runner, seed: int) -> float:
    """Of logits, over a prompt, decoded tokens, and a tree, whose every node is compared with its own path; in float32
    relative to the largest logit."""
    rng = random.Random(seed)
    vocab_size = runner.spec.vocab_size
    text = [rng.randrange(vocab_size) for _ in range(NUM_PROMPT + NUM_DECODED)]
    expected = golden_logits(model, text)
    assert expected.std() > 0.3, "the logits are too flat to tell models apart"
    parts = [runner.extend(text[:NUM_PROMPT], num_logit_rows=NUM_PROMPT)]
    parts += [runner.extend([token], num_logit_rows=1) for token in text[NUM_PROMPT:]]
    difference = float((torch.cat(parts) - expected).abs().max())
    parents = random_parents(rng, LENGTH - len(text))
    token_ids = [rng.randrange(vocab_size) for _ in parents]
    logits = tree_logits(runner, token_ids, parents)
    for node, row in enumerate(ancestry_matrix(parents)):
        path = [token_ids[place] for place in row.nonzero()[0]]
        of_path = golden_logits(model, padded(text + path))[len(text) + len(path) - 1]
        difference = max(difference, float((logits[node] - of_path).abs().max()))
    return difference if runner.cache.keys_LSKD.dtype == torch.float64 else difference / float(expected.abs().max())


@pytest.mark.parametrize("case", LONG_CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_text_of_any_length_cut_anywhere_has_the_logits_of_transformers(
    case: tuple[str, int], tmp_path: Path
) -> None:
    """Rows far in the text read states of several places."""
    name, seed = case
    model = FAMILIES[name].save(seed, tmp_path)
    rng = random.Random(seed)
    runner = runner_of(tmp_path, REFERENCE, torch.float64, 2 * LONGEST)
    text = [rng.randrange(runner.spec.vocab_size) for _ in range(rng.choice([LONGEST, rng.randint(1, LONGEST)]))]
    expected = golden_logits(model, text)
    for most in (LONGEST, 9):
        runner.sync(())
        found = in_parts(runner, text, rng, most)
        assert float((found - expected).abs().max()) <= MAX_ERROR


def padded(token_ids: list[int]) -> list[int]:
    """To the whole length, by which transformers decides a longrope, with tokens that no earlier row sees."""
    return token_ids + [0] * (LENGTH - len(token_ids))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_logits_equal_those_of_transformers(case: tuple[str, int], tmp_path: Path) -> None:
    name, seed = case
    model = FAMILIES[name].save(seed, tmp_path)
    model_spec = open_source(str(tmp_path)).spec()
    for kernels, dtype in KERNELS:
        assert largest_difference(model, runner_of(tmp_path, kernels, dtype), seed) <= MAX_ERROR, kernels.name
    if fault() is None and not mechanisms_of(model_spec, LENGTH) - NATIVE_MECHANISMS:
        difference = largest_difference(model, runner_of(tmp_path, NATIVE, torch.float32), seed)
        if difference > MAX_ERROR_FLOAT32:  # a few models enlarge what float32 rounds, on torch's kernels as well
            usual = largest_difference(model, runner_of(tmp_path, FUSED, torch.float32), seed)
            assert difference <= min(3 * usual, 10 * MAX_ERROR_FLOAT32)
