"""Weights of 8 and 4 bits from a name to a text: every drafter writes what the same rounded target writes alone."""

from dataclasses import replace

import pytest
import torch

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, Parallel, PromptLookup, SamplingParams
from forerun.backends import dtypes
from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.open import open_source
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import WeightsName
from forerun.core.drafter_config import DrafterConfig
from forerun.core.model_spec import WeightFormat
from forerun.engine.model_loading import Checkpoint
from forerun.model.quantise import dequantise, quantise
from forerun.model.runner import Runner
from tests.marks import rest_slow
from tests.tiny import plain_spec, random_weights

PROMPT = "the cat sat on the mat and the cat "
FORMATS: tuple[WeightFormat, ...] = ("int8", "int4")


def texts(target: str, weights: WeightsName, drafter: DrafterConfig) -> tuple[list[tuple[int, ...]], int]:
    """The ids of a greedy, a repeating and a sampled text, and how many of them the drafter had guessed."""
    config = EngineConfig(
        target=target, weights=weights, drafter=drafter, exactness="exact", num_threads=1, max_length=128,
    )  # fmt: skip
    requests = [
        SamplingParams(max_new_tokens=24, ignore_eos=True),
        SamplingParams(max_new_tokens=24, ignore_eos=True, logit_bias={65: 9.0, 66: 8.0}),
        SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=3),
    ]
    with Engine(config) as engine:
        results = [engine.generate(PROMPT, params) for params in requests]
    return [result.token_ids for result in results], sum(result.stats.num_accepted for result in results)


@pytest.mark.usefixtures("random_turns")
@pytest.mark.parametrize("weights", FORMATS)
def test_every_drafter_writes_the_text_of_the_same_rounded_target(target: str, weights: WeightsName) -> None:
    expected, _ = texts(target, weights, NoDrafter())
    require_texts(target, weights, DraftModel(model=target), expected)
    require_texts(target, weights, PromptLookup(), expected)


@pytest.mark.parametrize("weights", rest_slow(["int4", "int8"], 1))
def test_a_drafter_in_another_process_does_so_too(target: str, weights: WeightsName) -> None:
    expected, _ = texts(target, weights, NoDrafter())
    require_texts(target, weights, Parallel(draft=DraftModel(model=target), num_threads=1), expected)


def require_texts(target: str, weights: WeightsName, drafter: DrafterConfig, expected: list[tuple[int, ...]]) -> None:
    found, num_accepted = texts(target, weights, drafter)
    assert found == expected, drafter
    assert num_accepted > 0, f"{drafter} guessed nothing, which shows nothing"


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("is_tied", [True, False])
def test_linears_and_head_are_rounded_and_nothing_else(is_tied: bool, weight_format: WeightFormat) -> None:
    spec = plain_spec(tied_embeddings=is_tied, hidden_size=48, qkv_bias=True, qk_norm=True)
    weights = random_weights(spec, torch.Generator().manual_seed(1))
    by_hand = {"head.weight": weights["embedding.weight"], **weights}
    for name, weight in by_hand.items():
        if weight.ndim == 2 and name != "embedding.weight":
            chosen: WeightFormat = "int8" if name == "head.weight" else weight_format
            by_hand[name] = dequantise(quantise(weight, chosen)).double()
    settings = {"backend": REFERENCE, "capacity": 64, "dtype": torch.float64, "device": "cpu"}
    rounded = Runner(spec, LoadedWeights(weights, weight_format), **settings)  # type: ignore[arg-type]
    expected = Runner(replace(spec, tied_embeddings=False), LoadedWeights(by_hand), **settings)  # type: ignore[arg-type]
    rows = [3, 1, 4, 1, 5]
    assert torch.equal(rounded.extend(rows, num_logit_rows=5), expected.extend(rows, num_logit_rows=5))


def test_a_draft_is_held_in_8_bits_where_that_is_faster_and_nothing_else_was_asked_for() -> None:
    source = open_source("builtin-draft")
    held = Checkpoint.open_draft(source, EngineConfig())
    assert held.weight_format == ("int8" if dtypes.runs_native("bfloat16", "cpu") else "plain")
    assert Checkpoint.open_draft(source, EngineConfig(weights="int4")).weight_format == "int4"
    assert Checkpoint.open_draft(source, EngineConfig(dtype="float64")).weight_format == "plain"
    assert Checkpoint.open_draft(source, EngineConfig(kernels="torch")).weight_format == "plain"


@pytest.mark.parametrize(("is_native", "is_fast"), [(True, False), (False, True), (False, False)])
def test_what_is_not_rounded_is_bfloat16_where_the_cpu_does_not_emulate_it(
    is_native: bool, is_fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "runs_native", lambda dtype, device, conditions: is_native)
    monkeypatch.setattr(dtypes, "has_fast_bfloat16", lambda: is_fast)
    expected = "bfloat16" if is_native or is_fast else "float32"
    assert dtypes.compute_dtype("auto", stored="float16", is_quantised=True, device="cpu") == expected
    assert dtypes.compute_dtype("auto", stored="float16", is_quantised=True, device="cuda:0") == "float16"
