"""A request among several decoders: who plays it, and who goes on where one gives up."""

import random
from collections.abc import Sequence

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.steps import PrefillStep
from forerun.decoding.decoder import NothingToChooseError, Request, Round, Rounds, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.model.runner import Runner
from forerun.sampling.noise import KeyedNoise
from tests.tiny import decode_ids, random_weights, tiny_runner, tiny_spec

PROMPT = [1, 5, 2, 5]
NUM_TOKENS = 12


class Tiring(HostDecoder):
    """Gives up after some rounds; can play nothing that shapes scores."""

    def __init__(self, target: Runner, num_rounds: int) -> None:
        super().__init__(target, Drafters())
        self.target = target
        self.num_rounds = num_rounds
        self.ended = 0

    def can_play(self, request: Request) -> bool:
        return not request.params.shapes_scores

    def rounds(self, num_tokens: int) -> Rounds:
        num_left = self.num_rounds
        text = list(self._request.prompt_ids)
        for played in super().rounds(num_tokens):
            if isinstance(played, Round):
                if num_left == 0:
                    self.target.sync(text[:-1])
                    raise NothingToChooseError(text)
                num_left -= 1
                text += played.token_ids
            yield played

    def end(self) -> None:
        self.ended += 1
        super().end()


def played_by(decoders: Sequence[HostDecoder], params: SamplingParams, vocab_size: int) -> list[PrefillStep | Round]:
    noise = None if params.is_greedy else KeyedNoise(7, vocab_size)
    return list(play(decoders, Request(prompt_ids=PROMPT, params=params, noise=noise), NUM_TOKENS))


@pytest.mark.parametrize("num_rounds", [0, 1, 5, NUM_TOKENS])
@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "sampled"])
def test_where_a_decoder_gives_up_the_next_one_goes_on_and_the_text_is_the_same(
    params: SamplingParams, num_rounds: int
) -> None:
    spec = tiny_spec(random.Random(1), vocab_size=30)
    weights = random_weights(spec, torch.Generator().manual_seed(1))
    target, plain = (tiny_runner(spec, weights) for _ in range(2))
    first = Tiring(target, num_rounds)
    played = played_by((first, HostDecoder(target, Drafters())), params, 30)
    rounds = [done for done in played if isinstance(done, Round)]
    tokens = [token for done in rounds for token in done.token_ids]
    assert tokens == decode_ids(plain, Drafters(), PROMPT, params, seed=7, num_tokens=NUM_TOKENS)
    reading = [step.num_read for step in played if isinstance(step, PrefillStep)]
    assert reading == sorted(set(reading)), "the prompt is read once"
    assert all(isinstance(step, PrefillStep) for step in played[: len(reading)]), "and first"
    assert first.ended == 1


def test_a_decoder_that_cannot_play_a_request_is_not_asked() -> None:
    spec = tiny_spec(random.Random(1), vocab_size=30)
    target = tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(1)))
    first = Tiring(target, 0)
    played = played_by((first, HostDecoder(target, Drafters())), SamplingParams(repetition_penalty=1.3), 30)
    assert sum(len(done.token_ids) for done in played if isinstance(done, Round)) == NUM_TOKENS
    assert first.ended == 0
