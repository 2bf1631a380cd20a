"""The same text with every draft head: random targets, heads, requests and turns, against plain decoding."""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.core.model_spec import ModelSpec
from forerun.decoding.drafters import Drafters
from forerun.drafting.drafter import Drafter
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.dflash_network import DFlashDrafter, DFlashExecutor
from forerun.drafting.heads.drafter import head_vocabulary
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.eagle_network import EagleDrafter, EagleExecutor
from forerun.drafting.policies import TreePolicy
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
from tests.drafting.heads.texts import write
from tests.marks import rest_soak
from tests.random_settings import random_params
from tests.tiny import poison_freed_slots, random_weights, tiny_runner, tiny_spec

NUM_CHUNKS = 120  # 840 models, 3360 requests, 13440 drafted texts
CASES_PER_CHUNK = 7
REQUESTS_PER_CASE = 4
PATTERNS = ("(a|b|cd)+", "(a{1,2}(b|c)|d)*", "[a-d]{2,30}", "(ab?){3,}c*", "d*(ca|b)+")
KINDS = ("eagle3", "dflash", "dflash2", "dspark")
NO_PAIRS = {"conv_kernel": 0, "conv_group": 0, "pair_rank": 0, "num_pairs": 0}


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One request."""

    prompt_ids: list[int]
    params: SamplingParams
    pattern: str | None
    seed: int
    num_tokens: int


def heads_of(rng: random.Random, target: ModelSpec, seed: int) -> dict[str, Drafter]:
    """A head of each kind, by its name; an EAGLE-3 head has what one of the dialects can say."""
    dialect = rng.choice(["flat", "speculators"])
    options = {"norms_state": False} if dialect == "flat" else {"norms_logits": True}
    ids = torch.tensor(sorted(rng.sample(range(target.vocab_size), rng.randint(2, target.vocab_size))))
    eagle = random_eagle(rng, target, body=random_body(rng, vocab_size=len(ids)), **options)
    first = random_dflash(rng, target, **NO_PAIRS, markov_rank=0)
    second = random_dflash(rng, target, conv_kernel=rng.randint(1, 3), conv_group=2, pair_rank=4, num_pairs=5)
    return {
        f"eagle3 {dialect}": eagle_drafter(rng, eagle, target, seed, ids),
        "dflash": block_drafter(rng, first, target, seed),
        "dflash2": block_drafter(rng, second, target, seed),
        "dspark": block_drafter(rng, random_dflash(rng, target, **NO_PAIRS, markov_rank=4), target, seed),
    }


def random_tree(rng: random.Random) -> tuple[DraftHead, TreePolicy]:
    config = DraftHead(
        model="-", verify_width=rng.randint(2, 24), draft_width=rng.randint(1, 6), depth=rng.randint(1, 6),
        adaptive=rng.random() < 0.5,
    )  # fmt: skip
    return config, TreePolicy(knows_noise=rng.random() < 0.7, num_children=rng.randint(1, 5))


def eagle_drafter(rng: random.Random, spec: EagleSpec, target: ModelSpec, seed: int, ids: torch.Tensor) -> Drafter:
    head = eagle_head(spec, eagle_tensors(spec, target, seed))
    config, policy = random_tree(rng)
    runner = runner_of(spec.body, lambda cache: EagleExecutor(head, cache), cache_bytes=rng.choice([0, 2**16]))
    return EagleDrafter(
        runner, config, policy, target_vocab_size=target.vocab_size, taps=spec.taps(target.num_layers),
        vocabulary=head_vocabulary(ids, target.vocab_size),
    )  # fmt: skip


def block_drafter(rng: random.Random, spec: DFlashSpec, target: ModelSpec, seed: int) -> Drafter:
    head = dflash_head(spec, dflash_tensors(spec, target, seed))
    config, policy = random_tree(rng)
    runner = runner_of(spec.body, lambda cache: DFlashExecutor(head, cache), cache_bytes=rng.choice([0, 2**16]))
    return DFlashDrafter(runner, config, policy, target_vocab_size=target.vocab_size, taps=spec.taps(target.num_layers))


def random_request(rng: random.Random, vocab_size: int, written: list[int]) -> GenerationRequest:
    """A request, perhaps one that goes on with a text of before."""
    pattern = rng.choice(PATTERNS) if rng.random() < 0.3 else None
    params = replace(random_params(rng, vocab_size), temperature=rng.choice([0.0, 0.7, 1.0]))
    if pattern is not None:  # a bias may forbid all that the grammar allows
        params = replace(params, logit_bias={})
    kept = written[: rng.randint(0, len(written))] if len(written) < 60 and rng.random() < 0.5 else []
    return GenerationRequest(
        prompt_ids=[*kept, *(rng.randrange(vocab_size) for _ in range(rng.randint(1, 12)))],
        params=params,
        pattern=pattern,
        seed=rng.randrange(2**31),
        num_tokens=rng.randint(2, 16),
    )


def differences(number: int, totals: Counter[str]) -> list[str]:
    """Every drafted text of one target that is not the plain one, in words."""
    rng = random.Random(f"heads {number}")
    spec = tiny_spec(rng, vocab_size=rng.choice([5, 6, 7, 9, 12, 26]))
    weights = random_weights(spec, torch.Generator().manual_seed(number))
    target = tiny_runner(spec, weights, exactness=rng.choice(["fast", "fast", "exact"]), cache_bytes=2**16)
    poison_freed_slots(target)
    drafters = heads_of(rng, spec, number)
    written = list[int]()
    found = []
    for _ in range(REQUESTS_PER_CASE):
        asked = random_request(rng, spec.vocab_size, written)
        request = {"seed": asked.seed, "num_tokens": asked.num_tokens, "pattern": asked.pattern}
        expected, _ = write(target, Drafters(), asked.prompt_ids, asked.params, **request)
        written = [*asked.prompt_ids, *expected]
        totals["grammar"] += asked.pattern is not None
        totals["penalties"] += asked.params.has_penalties
        totals["filters"] += asked.params.is_filtered
        totals[f"temperature {asked.params.temperature}"] += 1
        for name, drafter in drafters.items():
            text, rounds = write(target, drafter, asked.prompt_ids, asked.params, **request)
            totals["texts"] += 1
            totals[name] += sum(done.stats.num_accepted for done in rounds)
            if text != expected:
                found.append(f"case {number}, {name}, {asked}: {text} instead of {expected}")
    return found


@pytest.mark.parametrize("chunk", rest_soak(range(NUM_CHUNKS), 1))
def test_every_head_gives_the_plain_text(chunk: int) -> None:
    totals: Counter[str] = Counter()
    numbers = range(chunk * CASES_PER_CHUNK, (chunk + 1) * CASES_PER_CHUNK)
    assert [text for number in numbers for text in differences(number, totals)] == []
    assert totals["texts"] == len(KINDS) * REQUESTS_PER_CASE * CASES_PER_CHUNK
    accepted = {kind: sum(totals[name] for name in totals if name.split()[0] == kind) for kind in KINDS}
    assert min(accepted.values()) > 0, f"a head had no luck: {totals}"
