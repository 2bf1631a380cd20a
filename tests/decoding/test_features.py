"""The target's features: a drafter that asks for them gets those of every committed token, and no text changes."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from forerun.backends.backend import Backend
from forerun.core.config import SamplingParams
from forerun.decoding.drafters import Drafters
from forerun.drafting.drafter import NO_NEWS, Drafter, DraftOutcome, DraftReport, ReadsFeatures
from forerun.model.runner import PREFILL_ROWS, Runner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree
from tests.model.kernel_sets import EXACT_SETS
from tests.tiny import decode_ids, plain_spec, random_weights, tiny_runner

SPEC = plain_spec(num_layers=3, max_positions=512)
TAPS = (0, 2)


class Listener(Drafter, ReadsFeatures):
    """Guesses at random, and keeps the features of committed tokens by their places."""

    verify_width = 6
    taps = TAPS

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.features = dict[int, Tensor]()

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._root = prompt_ids[-1]
        self.features = {}

    def read_features(self, place: int, features: Tensor) -> None:
        self.features |= zip(range(place, place + len(features)), features.clone(), strict=True)

    def told_features(self, place: int, features: Tensor) -> None:
        self.read_features(place, features[:1])
        self._seen = place, features.clone()

    def propose(self, budget: RowBudget) -> ProposedTree:
        tree = TokenTree(self._root)
        for token in self._rng.sample(range(SPEC.vocab_size), 5):
            tree.add(self._rng.randrange(len(tree)), token, -1.0)
        return ProposedTree(tree=tree)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        self._root = outcome.tokens[-1]
        place, features = self._seen
        for number, node in enumerate(outcome.path, 1):
            self.features[place + number] = features[node]
        return NO_NEWS


def runner_of(kernels: Backend) -> Runner:
    weights = random_weights(SPEC, torch.Generator().manual_seed(1), dtype=torch.float32)
    return tiny_runner(SPEC, weights, backend=kernels, capacity=512)


@pytest.mark.parametrize("kernels", EXACT_SETS)
@pytest.mark.parametrize("is_predicted", [False, True])
@pytest.mark.parametrize("num_prompt", [1, 9, PREFILL_ROWS + 40])
def test_features_of_all_committed_tokens_arrive_and_no_text_changes(
    kernels: Backend, is_predicted: bool, num_prompt: int
) -> None:
    rng = random.Random(num_prompt)
    prompt = [rng.randrange(SPEC.vocab_size) for _ in range(num_prompt)]
    params = SamplingParams(temperature=0.7)
    expected = decode_ids(runner_of(kernels), Drafters(), prompt, params, seed=3, num_tokens=40)
    listener = Listener(num_prompt)
    target = runner_of(kernels)
    prediction = expected[:10] if is_predicted else []
    assert decode_ids(target, listener, prompt, params, seed=3, num_tokens=40, prediction=prediction) == expected
    text = target.cached_ids
    assert sorted(listener.features) == list(range(len(text)))
    alone = runner_of(kernels).append(list(text), num_logit_rows=0, taps=TAPS).features
    assert alone is not None
    assert all(torch.equal(listener.features[place], alone[place]) for place in range(len(text)))
