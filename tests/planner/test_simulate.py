"""Simulated decoding: exact where it can be, close to the real drafters where guesses off the text matter."""

import random

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel, NoDrafter, Parallel, PromptLookup
from forerun.core.errors import ConfigError
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.policies import Policies, TreePolicy
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.bench.run.draft_traces import guesses
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.trace import AnswerTrace
from tests.planner.paces import costs, flat, known_answer
from tests.tiny import decode_rounds, plain_spec, random_weights, tiny_runner
from tests.varied import NO_LOOKUP

ALWAYS_DEEP = DraftModel(verify_width=8, draft_width=1, depth=6, adaptive=False)
FIXED_PAIR = DraftModel(verify_width=8, draft_width=8, adaptive=False)
TWO_CHILDREN = Policies(tree=TreePolicy(num_children=2, min_mass=0.0, looks_up=False), remote=NO_LOOKUP.remote)


def test_without_a_drafter_every_token_takes_a_pass() -> None:
    outcome = simulate([known_answer(20)], NoDrafter(), costs(10.0, 1.0, overhead_ms=0.5))
    assert (outcome.tokens_per_round, outcome.round_s) == (1.0, pytest.approx(10.5e-3))


def test_a_serial_draft_that_is_right_costs_its_depth_and_yields_it() -> None:
    outcome = simulate([known_answer(28)], ALWAYS_DEEP, costs(10.0, 1.0, overhead_ms=0.5), TWO_CHILDREN)
    assert outcome.tokens_per_round == 7.0
    assert outcome.round_s == pytest.approx(16.5e-3)
    assert outcome.expansions_per_round == 6.0


def test_a_parallel_draft_that_is_right_costs_nothing_and_fills_the_cut() -> None:
    config = Parallel(draft=FIXED_PAIR)
    outcome = simulate([known_answer(400)], config, costs(10.0, 1.0), TWO_CHILDREN)
    assert outcome.tokens_per_round > 7.5  # rounds of 8, but for the first ones
    assert outcome.round_s == pytest.approx(10e-3, rel=0.1)  # the wire, and now and then the end of an expansion


def test_the_last_round_counts_only_the_tokens_that_are_left() -> None:
    outcome = simulate([known_answer(10)], ALWAYS_DEEP, costs(10.0, 1.0), TWO_CHILDREN)
    (answer,) = outcome.answers
    assert (answer.num_tokens, answer.num_rounds, answer.num_accepted) == (10, 2, 9)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chain_of_a_real_pair_takes_exactly_the_simulated_rounds(temperature: float) -> None:
    """Guesses behind a wrong one change nothing in a chain, so nothing is left to the simulation's own devising."""
    spec = plain_spec()
    generator = torch.Generator().manual_seed(3)
    weights = random_weights(spec, generator)
    noisy = {name: weight + 0.02 * torch.randn(weight.shape, generator=generator) for name, weight in weights.items()}
    params = SamplingParams(temperature=temperature, seed=7)
    config = DraftModel(verify_width=5, draft_width=1, depth=4, adaptive=False)
    policies = Policies(tree=TreePolicy(num_children=1, min_mass=0.0, looks_up=False))
    prompt = [random.Random(1).randrange(spec.vocab_size) for _ in range(20)]
    drafter = DraftModelDrafter(tiny_runner(spec, noisy), config, policies.tree, target_vocab_size=spec.vocab_size)
    rounds = decode_rounds(tiny_runner(spec, weights), drafter, prompt, params, seed=7, num_tokens=80)
    token_ids = [token for step in rounds for token in step.token_ids]
    noise = None
    if temperature:
        from forerun.sampling.noise import KeyedNoise

        noise = KeyedNoise(7, spec.vocab_size)
    vocabulary = VocabularyMap.of_equal_ids(num_target=spec.vocab_size, num_draft=spec.vocab_size)
    children, log_probs = guesses(tiny_runner(spec, noisy), prompt, token_ids, params, noise, vocabulary)
    trace = AnswerTrace(
        prompt_ids=tuple(prompt), token_ids=tuple(token_ids), children=children, log_probs=log_probs
    )  # fmt: skip
    (answer,) = simulate([trace], config, costs(10.0, 1.0), policies).answers
    assert answer.num_rounds == len(rounds) > 1
    assert answer.num_accepted == sum(step.stats.num_accepted for step in rounds) > 20


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="PromptLookup has no draft"):
        simulate([known_answer(5)], PromptLookup(), costs(10.0, 1.0))
    for config in (DraftModel(), FIXED_PAIR, Parallel()):
        with pytest.raises(ConfigError, match="draft"):
            simulate([known_answer(5)], config, Costs(target=flat(10.0)))


def test_a_profile_gives_the_costs_of_a_split_and_says_what_it_lacks() -> None:
    profile = Profile(
        source="stated", unit="GPU", target={4: flat(10.0)}, draft={2: flat(1.0)},
        expansion_overhead_s=0.5e-3, worker_expansion_overhead_s=0.75e-3,
    )  # fmt: skip
    found = Costs.of(profile, target_units=4, draft_units=2)
    assert found.expansion_s(8) == pytest.approx(1.5e-3)
    assert found.worker_expansion_s(8) == pytest.approx(1.75e-3)
    assert found.worker_expansion_s(0) == pytest.approx(0.75e-3)
    with pytest.raises(ConfigError, match="target on 6 GPUs, only on 4"):
        Costs.of(profile, target_units=6, draft_units=2)
    with pytest.raises(ConfigError, match="draft on 3 GPUs, only on 2"):
        Costs.of(profile, target_units=4, draft_units=3)
