"""The same text, whichever drafter: random models, prompts, parameters and trees.

Plain decoding and every drafter are compared with a full recomputation that shares no code with the package.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from forerun.core.config import Exactness, SamplingParams
from forerun.core.drafter_config import DraftHead, TokenRecycling
from forerun.core.model_spec import CacheFormat, ModelSpec
from forerun.decoding.drafters import Drafters
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.dflash_network import DFlashDrafter, DFlashExecutor
from forerun.drafting.heads.drafter import head_vocabulary
from forerun.drafting.heads.eagle_network import EagleDrafter, EagleExecutor
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.model.vocabulary_map import VocabularyMap
from tests.dense_reference import reference_text
from tests.drafting.heads.random_heads import (
    dflash_head,
    dflash_tensors,
    eagle_head,
    eagle_tensors,
    random_body,
    random_dflash,
    random_eagle,
)
from tests.drafting.heads.runners import runner_of
from tests.drafting.mapped import mapped_model, random_map
from tests.marks import parted, rest_slow, rest_soak
from tests.random_settings import edited, random_params
from tests.tiny import (
    Weights,
    decode_ids,
    decode_rounds,
    negated,
    poison_freed_slots,
    random_weights,
    tiny_runner,
    tiny_spec,
)
from tests.tiny_families import FAMILIES, family_spec
from tests.varied import Varied, draft_model, prompt_lookup

NUM_DEFAULT_CHUNKS = 1
NUM_SLOW_CHUNKS = 800
CASES_PER_CHUNK = 30
NUMBERS_PER_FAMILY = parted(20, 2)
GEMMA_CASES_PER_CHUNK = 8
FORBIDDEN = -1e9


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request of one model pair."""

    number: int
    spec: ModelSpec
    weights: Weights
    draft_kind: str
    draft_spec: ModelSpec
    draft_weights: Weights
    vocabulary: VocabularyMap | None
    drafter: Varied
    lookup: Varied
    prompt_ids: list[int]
    params: SamplingParams
    seed: int
    num_tokens: int


def random_draft(
    rng: random.Random, spec: ModelSpec, weights: Weights, kind: str, seed: int
) -> tuple[ModelSpec, Weights]:
    """The draft of one case: the target itself, a stranger with a head of its own length, or the target's opposite."""
    match kind:
        case "equal":
            return spec, weights
        case "adversarial":
            return spec, negated(weights)
        case _:
            num_rows = max(3, spec.vocab_size + rng.choice([0, 0, -2, 3]))
            draft_spec = tiny_spec(rng, vocab_size=num_rows)
            return draft_spec, random_weights(draft_spec, torch.Generator().manual_seed(seed + 1))


def random_case(number: int, family: str | None = None) -> Case:
    rng = random.Random(number)
    spec = tiny_spec(rng) if family is None else family_spec(rng, family)
    weights = random_weights(spec, torch.Generator().manual_seed(number))
    kind = rng.choice(["equal", "other", "adversarial", "mapped"])
    vocabulary = random_map(rng, spec.vocab_size) if kind == "mapped" else None
    if vocabulary is None:
        draft_spec, draft_weights = random_draft(rng, spec, weights, kind, number)
        num_shared = min(spec.vocab_size, draft_spec.vocab_size)
    else:
        draft_spec, draft_weights = mapped_model(spec, weights, vocabulary)
        num_shared = spec.vocab_size
    params = random_params(rng, spec.vocab_size)
    if num_shared < spec.vocab_size:  # rows that pad the target's head carry no token
        padded = dict.fromkeys(range(num_shared, spec.vocab_size), FORBIDDEN)
        params = replace(params, logit_bias={**params.logit_bias, **padded})
    params = replace(params, logprobs=(None, None, 0, 3)[number % 4])
    lengths = sorted(rng.sample(range(1, 8), rng.randint(1, 4)), reverse=True)
    return Case(
        number=number,
        spec=spec,
        weights=weights,
        draft_kind=kind,
        draft_spec=draft_spec,
        draft_weights=draft_weights,
        vocabulary=vocabulary,
        drafter=draft_model(
            verify_width=rng.randint(1, 12),
            draft_width=rng.randint(1, 6),
            depth=rng.randint(1, 6),
            num_children=rng.randint(1, 5),
            knows_noise=rng.random() < 0.5,
            looks_up=rng.random() < 0.5,
        ),
        lookup=prompt_lookup(verify_width=rng.randint(1, 12), lengths=tuple(lengths)),
        prompt_ids=[rng.randrange(num_shared) for _ in range(rng.randint(1, 20))],
        params=params,
        seed=rng.choice([0, 1, rng.randrange(2**63), 2**63 - 1]),
        num_tokens=rng.randint(1, 24),
    )


def drafters_of(case: Case) -> dict[str, Drafter]:
    draft_runner = tiny_runner(case.draft_spec, case.draft_weights)
    poison_freed_slots(draft_runner)
    return {
        f"draft_model {case.draft_kind}": DraftModelDrafter(
            draft_runner,
            case.drafter.config,
            case.drafter.policies.tree,
            target_vocab_size=case.spec.vocab_size,
            vocabulary=case.vocabulary,
        ),
        "prompt_lookup": PromptLookupDrafter(case.lookup.config, case.lookup.policies.lookup),
        "recycling": TokenRecyclingDrafter(
            TokenRecycling(verify_width=case.lookup.config.verify_width),
            case.drafter.policies.tree,
            target_vocab_size=case.spec.vocab_size,
        ),
        **(heads_of(case) if case.number % 5 == 0 else {}),
    }


def heads_of(case: Case) -> dict[str, Drafter]:
    """A random EAGLE-3 head with a part of the target's tokens, and a random DFlash or DFlash 2 head."""
    rng = random.Random(f"heads {case.number}")
    target = case.spec
    tree = case.drafter.policies.tree
    config = DraftHead(
        model="-", verify_width=case.drafter.config.verify_width, draft_width=case.drafter.config.draft_width,
        depth=case.drafter.config.depth, adaptive=rng.random() < 0.5,
    )  # fmt: skip
    target_ids = torch.tensor(sorted(rng.sample(range(target.vocab_size), rng.randint(1, target.vocab_size))))
    eagle = random_eagle(rng, target, body=random_body(rng, vocab_size=len(target_ids)))
    block = random_dflash(rng, target)
    one_step = eagle_head(eagle, eagle_tensors(eagle, target, case.number))
    one_block = dflash_head(block, dflash_tensors(block, target, case.number))
    return {
        "eagle3": EagleDrafter(
            runner_of(eagle.body, lambda cache: EagleExecutor(one_step, cache)), config, tree,
            target_vocab_size=target.vocab_size, taps=eagle.taps(target.num_layers),
            vocabulary=head_vocabulary(target_ids, target.vocab_size),
        ),
        "dflash": DFlashDrafter(
            runner_of(block.body, lambda cache: DFlashExecutor(one_block, cache)), config, tree,
            target_vocab_size=target.vocab_size, taps=block.taps(target.num_layers),
        ),
    }  # fmt: skip


def differences(
    case: Case, totals: Counter[str], *, is_recomputed: bool = True, cache_format: CacheFormat = "model"
) -> list[str]:
    """Run one case; return every text that is not the reference's, or else the plain one, in words."""
    exactness: Exactness = "exact" if case.number % 2 else "fast"
    target = tiny_runner(case.spec, case.weights, exactness=exactness, cache_format=cache_format)
    poison_freed_slots(target)
    request = {"seed": case.seed, "num_tokens": case.num_tokens}
    if is_recomputed:
        expected = reference_text(case.spec, case.weights, case.prompt_ids, case.params, **request)
    else:
        expected = decode_ids(target, Drafters(), case.prompt_ids, case.params, **request)
    found = []
    rng = random.Random(f"predicted {case.number}")
    beside = rng.choice(list(drafters_of(case).values()))
    prediction = edited(rng, expected, case.spec.vocab_size)
    for name, drafter in {"none": Drafters(), **drafters_of(case), "predicted": beside}.items():
        hint = prediction if name == "predicted" else []
        rounds = decode_rounds(target, drafter, case.prompt_ids, case.params, **request, prediction=hint)
        text = [token for step in rounds for token in step.token_ids][: case.num_tokens]
        if case.params.logprobs is not None:
            assert all([item.token_id for item in step.logprobs] == list(step.token_ids) for step in rounds)
        totals[f"{name}: drafted"] += sum(step.stats.num_drafted for step in rounds)
        totals[f"{name}: accepted"] += sum(step.stats.num_accepted for step in rounds)
        if text != expected:
            found.append(f"case {case.number}, {name}: {text} instead of {expected}")
    return found


def check_chunk(chunk: int) -> tuple[list[str], Counter[str]]:
    totals: Counter[str] = Counter()
    found = []
    for number in range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK):
        found += differences(random_case(number), totals)
    return found, totals


def assert_all_drafted(totals: Counter[str]) -> None:
    """Equal texts say nothing about a drafter that never had a token accepted."""
    of_models = ("draft_model equal", "draft_model other", "draft_model mapped")
    for name in (*of_models, "prompt_lookup", "recycling", "predicted"):
        assert totals[f"{name}: drafted"] > 0, f"{name} drafted nothing"
        assert totals[f"{name}: accepted"] > 0, f"{name} had nothing accepted"
    for name in ("draft_model adversarial", "eagle3", "dflash"):  # random heads have hardly a guess accepted
        assert totals[f"{name}: drafted"] > 0, f"{name} drafted nothing"


@pytest.mark.parametrize("chunk", rest_soak(range(NUM_SLOW_CHUNKS), NUM_DEFAULT_CHUNKS))
def test_every_drafter_gives_the_text_of_a_full_recomputation(chunk: int) -> None:
    found, totals = check_chunk(chunk)
    assert found == []
    assert_all_drafted(totals)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("numbers", rest_slow(NUMBERS_PER_FAMILY, 1), ids=str)
def test_every_drafter_does_so_in_every_family(family: str, numbers: range) -> None:
    totals: Counter[str] = Counter()
    assert [found for number in numbers for found in differences(random_case(number, family), totals)] == []
    assert sum(count for name, count in totals.items() if name.endswith("accepted")) > 0


@pytest.mark.parametrize("chunk", rest_slow(range(20), 1))
def test_every_drafter_gives_the_plain_text_with_a_cache_in_8_bits(chunk: int) -> None:
    """Draft heads among them."""
    totals: Counter[str] = Counter()
    for number in range(CASES_PER_CHUNK * chunk, CASES_PER_CHUNK * (chunk + 1)):
        assert differences(random_case(number), totals, is_recomputed=False, cache_format="int8") == []
    assert_all_drafted(totals)


@pytest.mark.parametrize("chunk", rest_slow(range(20), 1))
def test_every_drafter_gives_the_plain_text_of_gemma_4(chunk: int) -> None:
    """Whose logits are compared with those of transformers in tests/golden."""
    totals: Counter[str] = Counter()
    for number in range(GEMMA_CASES_PER_CHUNK * chunk, GEMMA_CASES_PER_CHUNK * (chunk + 1)):
        assert differences(random_case(number, "gemma4_text"), totals, is_recomputed=False) == []
    assert sum(count for name, count in totals.items() if name.endswith("accepted")) > 0
