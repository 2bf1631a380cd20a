"""The same texts turn by turn, whichever drafter, family, kernels and cache: what was read before is used again.

Conversations go on, are cut back anywhere and give way to each other; texts are saved, and layers with a window lose
slots early. Every text is compared with plain decoding by a runner that reads it from the start and loses nothing.
"""

import random
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from forerun.backends.backend import Backend
from forerun.backends.cpu.backend import NATIVE
from forerun.backends.dtypes import Conditions, native_obstacle
from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.core.config import SamplingParams
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import CacheFormat, ModelSpec
from forerun.decoding.decoder import Request
from forerun.decoding.drafters import Drafters
from forerun.decoding.host_loop import decode
from forerun.decoding.prefill import prefill
from forerun.decoding.verifier import Verifier
from forerun.drafting.draft_model import DraftModelDrafter
from forerun.drafting.drafter import Drafter
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.prompt_lookup import PromptLookupDrafter
from forerun.drafting.token_recycling import TokenRecyclingDrafter
from forerun.model.runner import LEAST_ROWS, Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun.model.warm_texts import BLOCK
from forerun.sampling.noise import KeyedNoise
from tests.marks import rest_slow
from tests.sliding import lose_early
from tests.tiny import Weights, drafters_of, negated, poison_freed_slots, random_weights, tiny_runner
from tests.tiny_families import FAMILIES, family_spec
from tests.varied import draft_model, layer_skip, prompt_lookup, recycling

DRAFTERS = ("none", "draft_model", "prompt_lookup", "recycling", "layer_skip")
TURNS = 5  # 10 families, 5 drafters: 10,000 conversations
NUM_SLOW_CHUNKS = 100
CASES_PER_CHUNK = 2
CAPACITY = 192
MOST_PROMPT = 100
MOST_NEW = 20
MOST_ROWS = 32  # of a pass or a tree


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request of a conversation, and its text."""

    prompt_ids: list[int]
    owner: str
    params: SamplingParams
    seed: int
    num_tokens: int
    text: list[int]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its draft, and what it is asked in turn."""

    number: int
    spec: ModelSpec
    weights: Weights
    draft_weights: Weights
    kernels: Backend
    cache_format: CacheFormat
    turns: list[Turn]

    def runner(self, weights: Weights, num_blocks: int = 0) -> Runner:
        element_bytes = weights["embedding.weight"].element_size()
        return tiny_runner(
            self.spec, weights, backend=self.kernels, capacity=CAPACITY, cache_format=self.cache_format,
            cache_bytes=num_blocks * BLOCK * self.spec.kv_bytes_per_token(element_bytes, self.cache_format),
        )  # fmt: skip


def kernels_of(number: int, spec: ModelSpec) -> Backend:
    """Native kernels, where they run such a model, and torch's by turns."""
    if number % 2 or native_obstacle(Conditions(needed=mechanisms_of(spec, CAPACITY))) is not None:
        return FUSED if number % 4 == 1 else REFERENCE
    return NATIVE


def random_case(number: int, family: str, cache_format: CacheFormat = "model") -> Case:
    rng = random.Random(f"{family} {number}")
    spec = family_spec(rng, family, hidden_size=12, intermediate_size=16)
    kernels = kernels_of(number, spec)
    dtype = torch.float32 if kernels is NATIVE else torch.float64
    generator = torch.Generator().manual_seed(number)
    weights = random_weights(spec, generator, dtype=dtype)
    others = {"equal": weights, "other": random_weights(spec, generator, dtype=dtype), "opposite": negated(weights)}
    case = Case(
        number=number, spec=spec, weights=weights, draft_weights=others[rng.choice(list(others))], kernels=kernels,
        cache_format=cache_format, turns=[],
    )  # fmt: skip
    fresh = case.runner(weights)
    for _ in range(TURNS):
        prompt_ids = random_prompt(rng, case)
        turn = Turn(
            prompt_ids=prompt_ids, owner=rng.choice(["", "", "ann"]), seed=rng.randrange(2**63), text=[],
            params=SamplingParams(temperature=rng.choice([0.0, 1.0])), num_tokens=rng.randint(1, MOST_NEW),
        )  # fmt: skip
        fresh.forget()
        turn.text.extend(written(fresh, Drafters(), turn, Counter())[0])
        case.turns.append(turn)
    return case


def random_prompt(rng: random.Random, case: Case) -> list[int]:
    """Mostly what a turn before had in the end, or a beginning of it, and something new."""
    start: list[int] = []
    if case.turns and rng.random() < 0.9:
        turn = rng.choice([case.turns[-1], rng.choice(case.turns)])
        start = [*turn.prompt_ids, *turn.text]
        start = start[: rng.choice([len(start), len(start) - rng.randint(0, 20), rng.randint(0, len(start))])]
    num_new = rng.choice([1, 2, LEAST_ROWS, BLOCK + 1, 40])
    return [*start[: MOST_PROMPT - num_new], *(rng.randrange(case.spec.vocab_size) for _ in range(num_new))]


def written(target: Runner, drafter: Drafter | Drafters, turn: Turn, totals: Counter[str]) -> tuple[list[int], int]:
    """The text of one request, as the engine runs it, and how many tokens of its prompt were in the cache."""
    noise = None
    if not turn.params.is_greedy:
        noise = KeyedNoise(turn.seed, target.spec.vocab_size, device=target.device)
    request = Request(prompt_ids=turn.prompt_ids, params=turn.params, noise=noise, owner=turn.owner)
    drafters = drafters_of(drafter)
    drafters.start_text(request, target.drop_rows)
    *_, read = prefill(target, request, drafters)
    verifier = Verifier(target, turn.params, turn.prompt_ids, noise)
    rounds = list(decode(verifier, drafters, near_tie=0.0, num_tokens=turn.num_tokens))
    text = [token for played in rounds for token in played.token_ids][: turn.num_tokens]
    totals["texts"] += 1
    rows = target.cache.mixer_rows
    totals["reused behind slots written again"] += read.num_reused > 0 and rows is not None and rows._inputs_from > 0
    totals["reused"] += read.num_reused > 0
    totals["reused after losing slots"] += read.num_reused > 0 and target.cache.sliding.whole_from > 0
    totals[f"{type(drafter).__name__}: accepted"] += sum(played.stats.num_accepted for played in rounds)
    target.cut(len(turn.prompt_ids) + turn.num_tokens - 1)
    return text, read.num_reused


def drafter_of(case: Case, name: str, target: Runner, rng: random.Random) -> Drafter | Drafters:
    width = rng.randint(1, 8)
    depth = rng.randint(1, 5)
    match name:
        case "none":
            return Drafters()
        case "draft_model":
            draft = case.runner(case.draft_weights, rng.choice([0, 30]))
            poison_freed_slots(draft)
            one = draft_model(verify_width=width, draft_width=rng.randint(1, 4), depth=depth, adaptive=False)
            return DraftModelDrafter(draft, one.config, one.policies.tree, target_vocab_size=case.spec.vocab_size)
        case "prompt_lookup":
            one = prompt_lookup(verify_width=width, lengths=(4, 3, 2, 1), adaptive=False)
            return PromptLookupDrafter(one.config, one.policies.lookup)
        case "recycling":
            one = recycling(verify_width=width, adaptive=False)
            return TokenRecyclingDrafter(one.config, one.policies.tree, target_vocab_size=case.spec.vocab_size)
        case _:
            search = rng.choice(["off", "gated", "paper"])
            one = layer_skip(verify_width=width, depth=depth, adaptive=False, search=search, search_share=1.0)
            return LayerSkipDrafter(
                SharedCacheRunner(target), one.config, policy=one.policies.skip, tree=one.policies.tree
            )


def differences(case: Case, totals: Counter[str]) -> list[str]:
    """Play all turns with every drafter; return every text that is not the plain one, in words."""
    rng = random.Random(case.number)
    found = []
    margin = rng.choice([0, 1, 4, 20])
    step = rng.choice([1, 2, 9])
    num_blocks = rng.choice([0, 4, 30, 30])
    reused = set[tuple[int, ...]]()
    with pytest.MonkeyPatch.context() as patch:
        lose_early(patch, margin=margin, step=step)
        patch.setattr("forerun.core.mixers.PASS_ROWS", MOST_ROWS)  # so that slots are written again
        patch.setattr("forerun.core.mixers.INPUTS_REACH", margin)
        patch.setattr("forerun.model.runner.PREFILL_ROWS", rng.choice([5, MOST_ROWS]))
        for name in DRAFTERS:
            target = case.runner(case.weights, num_blocks)
            target._message_ends = {1, 2, 3}
            poison_freed_slots(target)
            drafter = drafter_of(case, name, target, rng)
            known = []
            for number, turn in enumerate(case.turns):
                text, num_reused = written(target, drafter, turn, totals)
                known.append(num_reused)
                if text != turn.text:
                    found.append(
                        f"{case.spec.family} {case.number}, {case.kernels.name}, {case.cache_format}, {name}, "
                        f"turn {number}: {text} instead of {turn.text}"
                    )
            reused.add(tuple(known))
    if len(reused) > 1:
        found.append(f"{case.spec.family} {case.number}: what was reused depends on the drafter, {reused}")
    return found


@pytest.mark.parametrize("family", rest_slow(["gemma4_text", "gpt_oss", *sorted({*FAMILIES} - {"gpt_oss"})], 5))
@pytest.mark.parametrize("cache_format", ["model", "int8"])
@pytest.mark.parametrize("chunk", rest_slow(range(NUM_SLOW_CHUNKS), 1))
def test_every_turn_has_the_plain_text_in_every_family(family: str, chunk: int, cache_format: CacheFormat) -> None:
    totals: Counter[str] = Counter()
    numbers = range(CASES_PER_CHUNK * chunk, CASES_PER_CHUNK * (chunk + 1))
    assert [
        found for number in numbers for found in differences(random_case(number, family, cache_format), totals)
    ] == []
    if chunk == 0:  # in others a window may have lost all that could be used again, and a draft may be always wrong
        assert totals["reused"] > 0, "nothing was used again"
        assert sum(count for name, count in totals.items() if name.endswith("accepted")) > 0
