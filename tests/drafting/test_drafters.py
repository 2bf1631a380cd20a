"""What a drafter may cost is speed: good, bad and broken ones, up to the last slot of the context."""

import random

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.core.model_spec import ModelSpec
from forerun.decoding.decoder import Round
from forerun.decoding.drafters import Drafters
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from tests.tiny import (
    Weights,
    decode_ids,
    decode_rounds,
    plain_spec,
    poison_freed_slots,
    proposal_of,
    random_weights,
    tiny_runner,
)
from tests.varied import Varied, draft_model, varied

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0)
PARAMS = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
PROMPT = [3, 1, 4, 1, 5]
NUM_TOKENS = 40
SPEC = plain_spec()


def weights_of(seed: int, spec: ModelSpec = SPEC) -> Weights:
    return random_weights(spec, torch.Generator().manual_seed(seed))


WEIGHTS = weights_of(1)


def drafter_of(
    weights: Weights,
    config: DraftModel | Varied,
    *,
    spec: ModelSpec = SPEC,
    capacity: int = 128,
    is_poisoned: bool = True,
) -> DraftModelDrafter:
    runner = tiny_runner(spec, weights, capacity=capacity)
    if is_poisoned:
        poison_freed_slots(runner)
    return DraftModelDrafter(
        runner, varied(config).config, varied(config).policies.tree, target_vocab_size=SPEC.vocab_size
    )


def rounds_of(drafter: Drafter, params: SamplingParams, *, seed: int = 7, num_tokens: int = NUM_TOKENS) -> list[Round]:
    return decode_rounds(tiny_runner(SPEC, WEIGHTS), drafter, PROMPT, params, seed=seed, num_tokens=num_tokens)


def ids_of(rounds: list[Round], num_tokens: int = NUM_TOKENS) -> list[int]:
    return [token for step in rounds for token in step.token_ids][:num_tokens]


def plain_ids(params: SamplingParams, *, seed: int = 7) -> list[int]:
    return ids_of(rounds_of(Drafters(), params, seed=seed))


@PARAMS
def test_a_draft_equal_to_the_target_has_every_chain_accepted(params: SamplingParams) -> None:
    """Noise-aware and of one child a node, it guesses the target's very draw."""
    drafter = drafter_of(WEIGHTS, draft_model(verify_width=5, depth=5, num_children=1, looks_up=False))
    rounds = rounds_of(drafter, params)
    assert all(step.stats.num_drafted == step.stats.num_accepted > 0 for step in rounds)
    assert ids_of(rounds) == plain_ids(params)


def test_knowing_the_noise_gets_more_tokens_accepted() -> None:
    accepted = {}
    for noise_aware in (True, False):
        drafter = drafter_of(WEIGHTS, draft_model(knows_noise=noise_aware, looks_up=False))
        steps = [step.stats for seed in range(5) for step in rounds_of(drafter, SAMPLED, seed=seed)]
        accepted[noise_aware] = sum(item.num_accepted for item in steps) / len(steps)
    assert accepted[True] > 1.5 * accepted[False] > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("repetition_penalty", [1.0, 1.3])
def test_a_draft_with_fewer_tokens_than_the_target_costs_no_token(
    temperature: float, repetition_penalty: float
) -> None:
    """Prompt and answer may hold ids behind the draft's head: added tokens, or the padding of the target's head."""
    params = SamplingParams(temperature=temperature, repetition_penalty=repetition_penalty)
    short = plain_spec(vocab_size=SPEC.vocab_size - 9)
    target = tiny_runner(SPEC, WEIGHTS)
    drafter = drafter_of(weights_of(3, short), DraftModel(), spec=short)
    prompt = [3, SPEC.vocab_size - 1, 4]
    expected = decode_ids(target, Drafters(), prompt, params, seed=7, num_tokens=NUM_TOKENS)
    assert decode_ids(target, drafter, prompt, params, seed=7, num_tokens=NUM_TOKENS) == expected
    if temperature:
        assert max(expected) >= short.vocab_size, "no id behind the draft's head was written, so nothing was tested"


@PARAMS
def test_a_draft_with_more_tokens_than_the_target_never_proposes_them(params: SamplingParams) -> None:
    long = plain_spec(vocab_size=SPEC.vocab_size + 9)
    weights = weights_of(3, long)
    weights["head.weight"][SPEC.vocab_size :] *= 20.0  # its favourites are tokens that the target does not have
    drafter = drafter_of(weights, draft_model(looks_up=False), spec=long)
    drafter.begin(PROMPT, params, None)
    tree = proposal_of(drafter)
    assert len(tree) > 1
    assert max(tree.token_ids) < SPEC.vocab_size
    assert ids_of(rounds_of(drafter, params)) == plain_ids(params)


@pytest.mark.parametrize(
    "changes",
    [
        {"top_k": 1},
        {"top_p": 0.3},
        {"min_p": 0.5},
        {"logit_bias": {2: 30.0}},
        {"repetition_penalty": 3.0},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"temperature": 0.1},
    ],
    ids=str,
)
def test_parameters_act_on_target_and_draft_alike(changes: dict[str, object]) -> None:
    """On the draft alone they would change nothing; on the target alone an equal draft would miss."""
    params = SamplingParams(**{"temperature": 1.0, **changes})  # type: ignore[arg-type]
    drafter = drafter_of(WEIGHTS, draft_model(verify_width=4, depth=4, num_children=1, looks_up=False))
    rounds = rounds_of(drafter, params)
    assert ids_of(rounds) == plain_ids(params) != plain_ids(SAMPLED)
    assert all(step.stats.num_accepted == step.stats.num_drafted > 0 for step in rounds)


@PARAMS
@pytest.mark.parametrize("seed", range(10))
def test_the_context_can_be_filled_to_its_last_slot(params: SamplingParams, seed: int) -> None:
    """The caches are no larger than the engine makes them."""
    rng = random.Random(seed)
    config = DraftModel(verify_width=rng.randint(1, 10), draft_width=rng.randint(1, 4), depth=rng.randint(1, 5))
    max_length = len(PROMPT) + NUM_TOKENS
    target = tiny_runner(SPEC, WEIGHTS, capacity=max_length + config.verify_width)
    draft_capacity = max_length + config.draft_width * config.depth + config.verify_width
    drafter = drafter_of(
        WEIGHTS if seed % 2 else weights_of(2), varied(config, num_children=2), capacity=draft_capacity
    )
    rounds = decode_rounds(target, drafter, PROMPT, params, seed=7, num_tokens=NUM_TOKENS)
    assert ids_of(rounds) == plain_ids(params)


@PARAMS
@pytest.mark.parametrize("cut", [1, 2, 7, 39])
def test_a_text_cut_and_taken_up_again_is_the_same(params: SamplingParams, cut: int) -> None:
    """The noise is keyed by the place in the text, not by a count of draws."""
    drafter = drafter_of(weights_of(2), DraftModel())
    whole = plain_ids(params)
    target = tiny_runner(SPEC, WEIGHTS)
    first = decode_ids(target, drafter, PROMPT, params, seed=7, num_tokens=cut)
    rest = decode_ids(target, drafter, [*PROMPT, *first], params, seed=7, num_tokens=NUM_TOKENS - cut)
    assert [*first, *rest] == whole


def test_a_hit_is_a_bonus_token_of_the_drafters_own_tree_outside_the_proposal() -> None:
    """Such a node was a child once likely enough, which likelier nodes then displaced from the cut."""
    drafter = drafter_of(
        weights_of(2), draft_model(verify_width=4, depth=6, draft_width=1, looks_up=False, knows_noise=False)
    )
    num_hits = sum(step.stats.was_hit for seed in range(10) for step in rounds_of(drafter, SAMPLED, seed=seed))
    assert num_hits > 0
    assert not any(step.stats.was_hit for step in rounds_of(Drafters(), SAMPLED))
