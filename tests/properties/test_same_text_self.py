"""The same text when the target drafts for itself: random models, sets, searches, trees and requests."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.config import SamplingParams
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.core.sublayers import SkipSet, skippable
from forerun.decoding.drafters import Drafters
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter, rows_behind_text
from forerun.drafting.layer_skip.set_files import NamedSet
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from tests.dense_reference import reference_text
from tests.drafting.layer_skip.skip_costs import adapt_to_slow_passes
from tests.marks import parted, rest_slow, rest_soak
from tests.random_settings import random_params
from tests.tiny import CAPACITY, Weights, decode_rounds, poison_freed_slots, random_weights, tiny_runner, tiny_spec
from tests.tiny_families import FAMILIES, family_spec
from tests.varied import Varied, layer_skip

NUM_CHUNKS = 300
CASES_PER_CHUNK = 30
NUMBERS = parted(NUM_CHUNKS, CASES_PER_CHUNK)
CASES_PER_FAMILY = 1
MOST_TOKENS = 48  # past the window of the paper's search


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two requests of one model that drafts for itself; the second begins with a part of the first's text."""

    number: int
    spec: ModelSpec
    weights: Weights
    drafter: Varied
    skipped: SkipSet
    copy: WeightFormat
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    num_tokens: int


def random_case(number: int, family: str | None = None) -> Case:
    rng = random.Random(number)
    num_layers = rng.choice([1, 2, 3, 4, 4, 5, 6])
    spec = family_spec(rng, family) if family else tiny_spec(rng, num_layers=num_layers)
    weights = random_weights(spec, torch.Generator().manual_seed(number), scale=rng.choice([0.3, 0.7, 1.5]))
    rate = rng.choice([0.0, 0.3, 0.6, 1.0])  # from nothing to everything
    search = rng.choice(["off", "gated", "gated", "paper"])
    copy: WeightFormat = rng.choice(["plain", "plain", "plain", "int8", "int4"])
    return Case(
        number=number,
        spec=spec,
        weights=weights,
        skipped=frozenset(part for part in skippable(spec.num_layers) if rng.random() < rate),
        drafter=layer_skip(
            verify_width=rng.randint(1, 12),
            draft_width=rng.choice([1, 1, 2, 4]),
            depth=rng.randint(1, 8),
            num_children=rng.randint(1, 5),
            knows_noise=rng.random() < 0.7,
            looks_up=rng.random() < 0.5,
            adaptive=rng.random() < 0.5,
            min_mass=rng.choice([0.0, 0.3]),
            min_confidence=rng.choice([0.0, 0.2, 0.8]),
            search=search,
            search_share=rng.choice([0.02, 1.0]),
            weights=copy,
            seed=rng.randrange(100),
        ),
        copy=copy,
        prompt_ids=[rng.randrange(spec.vocab_size) for _ in range(rng.randint(1, 20))],
        params=random_params(rng, spec.vocab_size),
        seed=rng.choice([0, 1, rng.randrange(2**63), 2**63 - 1]),
        num_tokens=rng.randint(1, MOST_TOKENS),
    )


def drafter_of(case: Case, target: Runner) -> Drafters:
    copy = None
    if case.copy != "plain":
        copy = target.backend.executor(case.spec, LoadedWeights(case.weights, case.copy), target.cache)
    drafter = LayerSkipDrafter(
        SharedCacheRunner(target, copy), case.drafter.config,
        known=[NamedSet(name="given", skipped=case.skipped)] if case.skipped else [],
        policy=case.drafter.policies.skip, tree=case.drafter.policies.tree,
    )  # fmt: skip
    return adapt_to_slow_passes(drafter)


def differences(case: Case, totals: Counter[str]) -> list[str]:
    """Run one case; return every text that is not the reference's, in words."""
    capacity = CAPACITY + rows_behind_text(case.drafter.config, case.drafter.policies.skip)
    target = tiny_runner(case.spec, case.weights, exactness="exact" if case.number % 2 else "fast", capacity=capacity)
    poison_freed_slots(target)
    drafter = drafter_of(case, target)
    found = []
    prompt_ids = case.prompt_ids
    for turn in range(2):
        request = {"seed": case.seed + turn if case.seed < 2**62 else case.seed, "num_tokens": case.num_tokens}
        expected = reference_text(case.spec, case.weights, prompt_ids, case.params, **request)
        rounds = decode_rounds(target, drafter, prompt_ids, case.params, **request)
        text = [token for step in rounds for token in step.token_ids][: case.num_tokens]
        totals[f"{case.drafter.config.search}: drafted"] += sum(step.stats.num_drafted for step in rounds)
        totals[f"{case.drafter.config.search}: accepted"] += sum(step.stats.num_accepted for step in rounds)
        if text != expected:
            found.append(f"case {case.number}, turn {turn}: {text} instead of {expected}")
        prompt_ids = [*prompt_ids, *expected[: case.num_tokens // 2 + 1]]
    return found


def check_cases(numbers: range) -> tuple[list[str], Counter[str]]:
    totals: Counter[str] = Counter()
    found = []
    for number in numbers:
        found += differences(random_case(number), totals)
    return found, totals


def assert_all_drafted(totals: Counter[str]) -> None:
    """Equal texts say nothing about a drafter that never had a token accepted."""
    for search in ("off", "gated", "paper"):
        assert totals[f"{search}: accepted"] > 0, f"{search} had nothing accepted: {totals}"


@pytest.mark.parametrize("numbers", rest_soak(NUMBERS, 1), ids=str)
def test_a_target_that_drafts_for_itself_writes_the_text_of_a_full_recomputation(numbers: range) -> None:
    found, totals = check_cases(numbers)
    assert found == []
    assert_all_drafted(totals)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", rest_slow(range(20), 1))
def test_it_does_so_in_every_family(family: str, chunk: int) -> None:
    totals: Counter[str] = Counter()
    numbers = range(CASES_PER_FAMILY * chunk, CASES_PER_FAMILY * (chunk + 1))
    assert [found for number in numbers for found in differences(random_case(number, family), totals)] == []
