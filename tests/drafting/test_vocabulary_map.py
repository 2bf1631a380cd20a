"""A draft with a part of the tokens ranks these as its target would if the others were forbidden."""

import math
import random

import pytest
import torch

from forerun.core.errors import NumericalError
from forerun.drafting.draft_rows import OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import TreePolicy
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from forerun.sampling.sample import LogitShaper, sample
from tests.drafting.mapped import mapped_model, random_map
from tests.random_settings import random_params
from tests.tiny import plain_spec, random_weights, tiny_runner

NUM_TARGET = 60
WEIGHTS = random_weights(plain_spec(vocab_size=NUM_TARGET), torch.Generator().manual_seed(1), dtype=torch.float32)


def tree_of(vocabulary: VocabularyMap, *, is_native: bool) -> DraftTree:
    spec, weights = mapped_model(plain_spec(vocab_size=NUM_TARGET), WEIGHTS, vocabulary)
    runner = tiny_runner(spec, weights, exactness="fast" if is_native else "exact")
    guessed = GuessedTree(TreePolicy(looks_up=False), verify_width=4, draft_width=2, horizon=4)
    return DraftTree(guessed, OwnRows(runner, 64), target_vocab_size=NUM_TARGET, vocabulary=vocabulary)


@pytest.mark.parametrize("seed", range(20))
def test_guesses_are_the_targets_choices_among_the_tokens_of_the_draft(seed: int) -> None:
    """Biases, penalties of text that the draft lacks in part, filters and noise are all those of the target's ids."""
    rng = random.Random(seed)
    vocabulary = random_map(rng, NUM_TARGET)
    params = random_params(rng, NUM_TARGET, seed=seed)
    noise = None if params.is_greedy else KeyedNoise(seed, NUM_TARGET)
    prompt_ids, new_ids = ([rng.randrange(NUM_TARGET) for _ in range(9)] for _ in range(2))
    logits = 3 * torch.randn(4, vocabulary.num_columns, generator=torch.Generator().manual_seed(seed))
    whole = torch.full((4, NUM_TARGET), -math.inf)
    whole[:, vocabulary.target_ids] = logits
    shaper = LogitShaper(params, NUM_TARGET, prompt_ids)
    shaper.commit(new_ids)
    places = [18, 19, 20, 21]
    scores = shaper.shape(whole, [()] * 4)
    try:
        expected = sample(scores, noise and noise.at(places), temperature=shaper.temperature_left).token_ids
    except NumericalError:  # the biases forbid every token that the draft has
        assert bool((scores.amax(-1) == -math.inf).any())
        return
    tree = tree_of(vocabulary, is_native=seed % 2 == 0)
    tree.reset(prompt_ids, params, noise)
    tree.advance(new_ids)
    assert tree.guess(logits, places) == expected


def test_ids_that_only_one_model_has_are_a_case_of_the_same() -> None:
    longer, shorter = (VocabularyMap.of_equal_ids(num_target=5, num_draft=num) for num in (7, 3))
    assert (longer.num_columns, longer.column_ids, longer.read([0, 4, 9])) == (5, None, [0, 4, 0])
    assert (shorter.num_columns, shorter.column_ids, shorter.read([2, 3, 4])) == (3, None, [2, 0, 0])
    assert shorter.columns([0, 2, 3, 4]) == [0, 2]
    assert shorter.num_unknown([0, 2, 3, 4, 99]) == 3
