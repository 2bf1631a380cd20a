"""Random models, trees and requests: rounds on the device write what the host's loop writes without a drafter."""

import random

import pytest
import torch

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.backend import TRITON
from forerun.core.config import SamplingParams
from forerun.decoding.drafters import Drafters
from tests.tiny import CAPACITY, decode_ids, random_weights, tiny_runner, tiny_spec
from tests.varied import Varied, draft_model

pytest.importorskip("triton")

from forerun.backends.gpu.rounds import DeviceRounds
from forerun.backends.gpu.rounds_in_flight import Pipeline
from forerun.decoding.decoder import Request, Round, play
from forerun.decoding.device_loop import DeviceDecoder
from forerun.sampling.noise import KeyedNoise

NUM_TOKENS = 12
CASES_PER_SEED = 3


def random_tree(rng: random.Random) -> Varied:
    return draft_model(
        verify_width=rng.choice([2, 3, 5, 8, 12]),
        draft_width=rng.randint(1, 4),
        num_children=rng.randint(1, 4),
        depth=rng.randint(1, 3),
        looks_up=rng.random() < 0.5,
        knows_noise=rng.random() < 0.7,
        min_mass=rng.choice([0.0, 0.3]),
        adaptive=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
@torch.inference_mode()
def test_the_text_is_that_of_no_drafter(seed: int, device: str) -> None:
    rng = random.Random(seed)
    heads = rng.choice([1, 2])
    spec = tiny_spec(
        rng, num_layers=rng.randint(1, 2), hidden_size=rng.choice([20, 48]), head_dim=16, num_kv_heads=heads,
        num_heads=heads * rng.randint(1, 3), vocab_size=rng.randint(3, 90),
    )  # fmt: skip
    weights = random_weights(spec, torch.Generator().manual_seed(seed), dtype=torch.float32)
    loud = {
        name: weight + 0.1 * weight.std(unbiased=False) * torch.randn_like(weight) for name, weight in weights.items()
    }
    target, draft = (tiny_runner(spec, each, backend=TRITON, device=device) for each in (weights, loud))
    plain = tiny_runner(spec, weights, backend=TRITON, device=device)
    tree = random_tree(rng)
    plan = RoundPlan(draft=draft, shape=tree.config, policy=tree.policies.tree)
    decoder = DeviceDecoder(Pipeline(DeviceRounds(target, plan)))
    num_accepted = 0
    for _ in range(CASES_PER_SEED):
        prompt = [rng.randrange(spec.vocab_size) for _ in range(rng.choice([1, 2, 7, CAPACITY // 2]))]
        params = SamplingParams(temperature=rng.choice([0.0, 0.7, 1.3]))
        noise = None if params.is_greedy else KeyedNoise(seed, spec.vocab_size, device=device)
        played = play((decoder,), Request(prompt_ids=prompt, params=params, noise=noise), NUM_TOKENS)
        rounds = [done for done in played if isinstance(done, Round)]
        found = [token for done in rounds for token in done.token_ids][:NUM_TOKENS]
        assert found == decode_ids(plain, Drafters(), prompt, params, seed=seed, num_tokens=NUM_TOKENS)
        num_accepted += sum(done.stats.num_accepted for done in rounds)
    assert num_accepted > 0 or spec.vocab_size > 40, "nothing was ever accepted, so little was tested"
