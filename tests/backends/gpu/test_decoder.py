"""Rounds on the device: the text is that of the host's loop, and the caches are what the host takes them for."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.backend import TRITON
from forerun.backends.torch.backend import REFERENCE
from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.core.model_spec import ModelSpec
from forerun.decoding.decoder import NothingToChooseError, Request, Round, Rounds, play
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import HostDecoder
from forerun.drafting.drafter import PLAIN_PLAN
from forerun.model.runner import Runner
from forerun.model.vocabulary_map import VocabularyMap
from forerun.sampling.noise import KeyedNoise
from tests.drafting.mapped import mapped_model
from tests.marks import rest_slow
from tests.tiny import Weights, decode_ids, random_weights, tiny_runner, tiny_spec

pytest.importorskip("triton")

from forerun.backends.gpu import rounds as device_rounds
from forerun.backends.gpu.rounds import DeviceRounds
from forerun.backends.gpu.rounds_in_flight import Pipeline
from forerun.decoding.device_loop import DeviceDecoder, device_decoders
from tests.varied import Varied, draft_model

CAPACITY = 160
SAVED_BYTES = 2**20
SAMPLED = SamplingParams(temperature=0.8)
GREEDY = SamplingParams()
FILTERED = SamplingParams(temperature=1.3, top_k=30, top_p=0.9, min_p=0.02)
PENALISED = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={3: 0.5})
PLAIN = None  # no drafter


@pytest.fixture(autouse=True)
def _as_in_an_engine() -> Iterator[None]:
    with torch.inference_mode():
        yield


def spec_of(**changes: object) -> ModelSpec:
    fixed: dict[str, object] = {
        "num_layers": 1, "hidden_size": 32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16,
        "intermediate_size": 32, "vocab_size": 40, "max_positions": CAPACITY, "qk_norm": False,
        "tied_embeddings": False,
    }  # fmt: skip
    return tiny_spec(random.Random(3), **{**fixed, **changes})


def runner_of(spec: ModelSpec, weights: Weights, device: str) -> Runner:
    return tiny_runner(spec, weights, backend=TRITON, capacity=CAPACITY, device=device, cache_bytes=SAVED_BYTES)


def deviation(weight: torch.Tensor) -> torch.Tensor:
    """The standard deviation of a weight; 0 of a single number."""
    return weight.std(correction=min(1, weight.numel() - 1))


def noisy(weights: Weights, spread: float) -> Weights:
    """A model much like this one."""
    generator = torch.Generator().manual_seed(9)
    return {
        name: weight + spread * deviation(weight) * torch.randn(weight.shape, generator=generator)
        for name, weight in weights.items()
    }


def map_of(known: Sequence[int], vocab_size: int) -> VocabularyMap:
    """Of a draft that reads every token as the last of its own that does not lie above it."""
    target_ids = torch.tensor(known, dtype=torch.int32)
    draft_ids = torch.searchsorted(target_ids, torch.arange(vocab_size, dtype=torch.int32), right=True) - 1
    return VocabularyMap(target_ids=target_ids, draft_ids=draft_ids.clamp(min=0).int())


class Pair:
    def __init__(
        self, device: str, spread: float = 0.2, known: Sequence[int] | None = None, spec: ModelSpec | None = None
    ) -> None:
        """With `known`, the draft has only these of the target's tokens, in rising order."""
        self.device = device
        self.spec = spec or spec_of()
        self.weights = random_weights(self.spec, torch.Generator().manual_seed(5), dtype=torch.float32)
        self.target = runner_of(self.spec, self.weights, device)
        self.draft_spec = self.spec
        self.draft_weights = noisy(self.weights, spread)
        self.vocabulary = None
        if known is not None:
            self.vocabulary = map_of(known, self.spec.vocab_size)
            self.draft_spec, self.draft_weights = mapped_model(self.spec, self.draft_weights, self.vocabulary)
        self.draft = runner_of(self.draft_spec, self.draft_weights, device)

    def decoder(self, config: Varied | None) -> DeviceDecoder:
        plan = PLAIN_PLAN
        if config is not None:
            plan = RoundPlan(
                draft=self.draft, shape=config.config, policy=config.policies.tree, vocabulary=self.vocabulary
            )
        return DeviceDecoder(Pipeline(DeviceRounds(self.target, plan)))

    def require_text_of_torch(self, params: SamplingParams) -> None:
        """Rounds on the device write what plain decoding by torch's reference kernels does."""
        plain = tiny_runner(self.spec, self.weights, backend=REFERENCE, capacity=CAPACITY, device=self.device)
        expected = decode_ids(plain, Drafters(), PROMPT, params, seed=7, num_tokens=10)
        found = self.write(self.decoder(tree()), PROMPT, params, 7, 10)
        assert found == expected
        assert len(set(found)) > 3, "a text of few different tokens proves little"

    def plain(self, prompt: Sequence[int], params: SamplingParams, seed: int, num_tokens: int) -> list[int]:
        """What the model writes by itself, by the host's loop."""
        runner = runner_of(self.spec, self.weights, self.device)
        return decode_ids(runner, Drafters(), prompt, params, seed=seed, num_tokens=num_tokens)

    def rounds(
        self, decoder: DeviceDecoder, prompt: list[int], params: SamplingParams, seed: int, num_tokens: int
    ) -> list[Round]:
        noise = None if params.is_greedy else KeyedNoise(seed, self.spec.vocab_size, device=self.device)
        decoders = (decoder, HostDecoder(self.target, Drafters()))
        played = play(decoders, Request(prompt_ids=prompt, params=params, noise=noise), num_tokens)
        return [done for done in played if isinstance(done, Round)]

    def write(
        self, decoder: DeviceDecoder, prompt: list[int], params: SamplingParams, seed: int, num_tokens: int
    ) -> list[int]:
        rounds = self.rounds(decoder, prompt, params, seed, num_tokens)
        return [token for done in rounds for token in done.token_ids][:num_tokens]


def tree(**changes: object) -> Varied:
    fixed: dict[str, object] = {
        "verify_width": 6, "draft_width": 3, "num_children": 2, "depth": 2, "looks_up": False, "adaptive": False,
        "min_mass": 0.0,
    }  # fmt: skip
    return draft_model(**{**fixed, **changes})


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def test_requests_that_need_the_host_between_steps_are_left_to_its_loop(device: str) -> None:
    decoder = Pair(device).decoder(PLAIN)
    plain = Request(prompt_ids=PROMPT, params=GREEDY, noise=None)
    assert decoder.can_play(plain)
    assert not decoder.can_play(replace(plain, prediction=(1, 2)))
    assert decoder.can_play(replace(plain, params=FILTERED))
    assert not decoder.can_play(replace(plain, params=SamplingParams(logprobs=0)))


CASES = [
    pytest.param(PLAIN, GREEDY, id="none, greedy"),
    pytest.param(tree(), SAMPLED, id="tree, sampled"),
    pytest.param(tree(looks_up=True, depth=1), GREEDY, id="lookup, greedy"),
    pytest.param(tree(), FILTERED, id="tree, filtered", marks=pytest.mark.slow),
    pytest.param(
        tree(looks_up=True, depth=1),
        replace(FILTERED, frequency_penalty=0.8),
        id="lookup, filtered and penalised",
        marks=pytest.mark.slow,
    ),
    pytest.param(PLAIN, PENALISED, id="none, penalised", marks=pytest.mark.slow),
    pytest.param(tree(), PENALISED, id="tree, penalised", marks=pytest.mark.slow),
    pytest.param(PLAIN, SAMPLED, id="none, sampled", marks=pytest.mark.slow),
    pytest.param(tree(), GREEDY, id="tree, greedy", marks=pytest.mark.slow),
    pytest.param(tree(looks_up=True), SAMPLED, id="lookup, sampled", marks=pytest.mark.slow),
    pytest.param(tree(knows_noise=False), SAMPLED, id="deaf, sampled", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("config", "params"), CASES)
def test_the_text_is_that_of_the_hosts_loop(config: Varied | None, params: SamplingParams, device: str) -> None:
    pair = Pair(device)
    assert pair.write(pair.decoder(config), PROMPT, params, 7, 10) == pair.plain(PROMPT, params, 7, 10)


@pytest.mark.parametrize(("draft_width", "children"), [(1, 9), (17, 8), (32, 1)])
def test_a_tree_that_the_kernels_have_no_room_for_is_left_to_the_hosts_loop(
    draft_width: int, children: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_rounds, "MOST_CHILDREN", 8)  # fewer than a config may ask for
    pair = Pair(device)
    wide = tree(draft_width=draft_width, num_children=children)
    plan = RoundPlan(draft=pair.draft, shape=wide.config, policy=wide.policies.tree)
    assert device_decoders(TRITON, pair.target, plan) == ()


def test_a_tree_of_as_many_children_as_fit_can_be_played(device: str) -> None:
    pair = Pair(device)
    wide = tree(draft_width=8, num_children=16, depth=1)
    plan = RoundPlan(draft=pair.draft, shape=wide.config, policy=wide.policies.tree)
    (decoder,) = device_decoders(TRITON, pair.target, plan)
    assert pair.write(decoder, PROMPT, SAMPLED, 7, 2) == pair.plain(PROMPT, SAMPLED, 7, 2)


@pytest.mark.parametrize("params", [FILTERED, pytest.param(PENALISED, marks=pytest.mark.slow)], ids=["f", "p"])
def test_a_drafts_scores_are_shaped_as_the_targets(params: SamplingParams, device: str) -> None:
    pair = Pair(device, spread=0.0)
    rounds = pair.rounds(pair.decoder(tree()), PROMPT, params, 7, 6)
    assert all(done.stats.num_accepted == 2 for done in rounds)


@pytest.mark.slow  # by default the caches of such a draft, below
@pytest.mark.parametrize("params", [
    GREEDY, SAMPLED, PENALISED, FILTERED
], ids=["greedy", "sampled", "penalised", "filtered"])  # fmt: skip
def test_a_draft_of_those_tokens_that_the_text_has_guesses_as_well_as_one_of_all(
    params: SamplingParams, device: str
) -> None:
    text = Pair(device).plain(PROMPT, params, 7, 12)
    pair = Pair(device, spread=0.0, known=sorted({*PROMPT, *text, 39}))
    rounds = pair.rounds(pair.decoder(tree()), PROMPT, params, 7, 12)
    assert [token for done in rounds for token in done.token_ids][:12] == text
    assert all(done.stats.num_accepted == 2 for done in rounds[:-1]), "the last may go beyond the known text"


@pytest.mark.parametrize("known", rest_slow([range(1, 40, 3), None], 1), ids=["part", "whole"])
def test_the_caches_are_those_of_the_text(known: Sequence[int] | None, device: str) -> None:
    pair = Pair(device, known=known)
    text = PROMPT + pair.write(pair.decoder(tree()), PROMPT, GREEDY, 0, 8)
    assert text[len(PROMPT) :] == pair.plain(PROMPT, GREEDY, 0, 8)
    read = text if pair.vocabulary is None else pair.vocabulary.read(text)
    for runner, spec, weights, ids in (
        (pair.target, pair.spec, pair.weights, text),
        (pair.draft, pair.draft_spec, pair.draft_weights, read),
    ):
        length = len(runner.cached_ids)
        assert runner.cached_ids == ids[:length]
        assert runner.cache.committed_len == length >= len(text) - 4
        fresh = runner_of(spec, weights, device)
        fresh.sync(ids[:length])
        assert torch.equal(runner.cache.storage_2LSKD[:, :, :length], fresh.cache.storage_2LSKD[:, :, :length])


@pytest.mark.slow
def test_one_request_after_another_and_one_cut_short(device: str) -> None:
    pair = Pair(device)
    decoder = pair.decoder(tree(looks_up=True))
    first = PROMPT + pair.write(decoder, PROMPT, GREEDY, 0, 9)
    noise = KeyedNoise(3, pair.spec.vocab_size, device=device)
    rounds = play((decoder,), Request(prompt_ids=first, params=SAMPLED, noise=noise), 20)
    assert any(isinstance(played, Round) for played in rounds)
    rounds.close()
    other = [7, 7, 2]
    assert pair.write(decoder, other, SAMPLED, 4, 12) == pair.plain(other, SAMPLED, 4, 12)
    assert pair.write(decoder, first, SAMPLED, 3, 12) == pair.plain(first, SAMPLED, 3, 12)


@pytest.mark.slow
def test_a_draft_that_fell_behind_is_brought_up_again(device: str) -> None:
    pair = Pair(device)
    decoder = pair.decoder(tree())
    depths = iter([0, 0, 0, 0, *[2] * 40])

    class Depths:
        def depth(self) -> int:
            return next(depths)

        def measure_depth(self, *_: object) -> None:
            pass

    decoder._referee = Depths()  # type: ignore[assignment]
    rounds = pair.rounds(decoder, PROMPT, GREEDY, 0, 12)
    assert [token for done in rounds for token in done.token_ids][:12] == pair.plain(PROMPT, GREEDY, 0, 12)
    assert max(done.stats.num_accepted for done in rounds[4:]) > 0


def test_the_host_goes_on_with_what_was_written_before_it(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(device)
    params = replace(PENALISED, frequency_penalty=2.0, repetition_penalty=1.0)
    text = pair.plain(PROMPT, params, 7, 12)
    decoder = pair.decoder(PLAIN)
    rounds = decoder.rounds

    def stops_early(num_tokens: int) -> Rounds:
        yield from islice(rounds(num_tokens), 5)
        raise NothingToChooseError(decoder._token_ids)

    monkeypatch.setattr(decoder, "rounds", stops_early)
    assert pair.write(decoder, PROMPT, params, 7, 12) == text


def test_where_the_device_can_choose_nothing_the_host_finds_out_why(device: str) -> None:
    pair = Pair(device)
    pair.weights["head.weight"][5] = float("nan")
    pair.target = runner_of(pair.spec, pair.weights, device)
    with pytest.raises(NumericalError):
        pair.write(pair.decoder(PLAIN), PROMPT, GREEDY, 0, 6)
    assert pair.target.cached_ids == []
