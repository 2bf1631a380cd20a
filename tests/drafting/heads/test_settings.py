"""Penalties, filters and grammars hold behind every drafted token, also of a DFlash head's one pass.

A published engine applied them as they were before the block, which changes the text.
"""

import random
from dataclasses import replace
from typing import Literal, get_args

import pytest
import torch

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.decoding.drafters import Drafters
from forerun.drafting.heads.dflash_network import DFlashDrafter, DFlashExecutor
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.eagle_network import EagleDrafter, EagleExecutor
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
from tests.marks import in_turn
from tests.tiny import plain_spec, random_weights, tiny_runner

TARGET = plain_spec(num_layers=3, vocab_size=5)  # so few tokens that a wide tree holds the right ones
WEIGHTS = random_weights(TARGET, torch.Generator().manual_seed(1))
CONFIG = DraftHead(model="-", verify_width=24, draft_width=6, depth=5, adaptive=False)
Kind = Literal["eagle3", "dflash", "dflash2"]


def drafter_of(kind: Kind) -> HeadDrafter:
    rng = random.Random(3)
    body = random_body(random.Random(3), vocab_size=TARGET.vocab_size, num_layers=1)
    sizes = {"target_vocab_size": TARGET.vocab_size}
    if kind == "eagle3":
        eagle = random_eagle(rng, TARGET, body=body)
        one = eagle_head(eagle, eagle_tensors(eagle, TARGET, 3))
        runner = runner_of(body, lambda cache: EagleExecutor(one, cache))
        return EagleDrafter(runner, CONFIG, taps=eagle.taps(3), **sizes)
    pairs = {"conv_kernel": 2, "conv_group": 2, "pair_rank": 4, "num_pairs": 5} if kind == "dflash2" else {}
    block = random_dflash(rng, TARGET, body=body, windows=(None,), is_causal=(False,), block_size=5)
    block = replace(block, **({"conv_kernel": 0, "pair_rank": 0} | pairs))
    many = dflash_head(block, dflash_tensors(block, TARGET, 3))
    runner = runner_of(body, lambda cache: DFlashExecutor(many, cache))
    return DFlashDrafter(runner, CONFIG, taps=block.taps(3), **sizes)


SETTINGS = [
    ({"presence_penalty": 1.5, "frequency_penalty": 0.8}, None),
    ({"temperature": 1.0, "repetition_penalty": 3.0}, None),
    ({"temperature": 0.7, "frequency_penalty": 1.0, "top_k": 2}, None),  # a filter keeps others behind a penalty
    ({"temperature": 1.0, "presence_penalty": 2.0, "top_p": 0.6, "min_p": 0.1}, None),
    ({}, "(a{1,2}(b|c)|d(a|b|d)){6,}"),
    ({"temperature": 0.7, "frequency_penalty": 1.0, "top_k": 3}, "((ab?|c)(d|cc)){6,}"),
]


@pytest.mark.parametrize(("asked", "kind"), in_turn(SETTINGS, get_args(Kind)))
def test_settings_hold_behind_tokens_drafted_in_the_same_round(
    asked: tuple[dict[str, float], str | None], kind: Kind
) -> None:
    settings, pattern = asked
    params = SamplingParams(**settings)  # type: ignore[arg-type]
    num_deep = 0
    target = tiny_runner(TARGET, WEIGHTS, exactness="fast")
    drafter = drafter_of(kind)
    for seed in range(2):
        request = {"seed": seed, "num_tokens": 16, "pattern": pattern}
        prompt = [3, 1, 4, 1, seed, 2]
        expected, _ = write(target, Drafters(), prompt, params, **request)
        found, rounds = write(target, drafter, prompt, params, **request)
        assert found == expected
        num_deep += sum(done.stats.num_accepted >= 2 for done in rounds)
    assert num_deep > 0, "a text without accepted chains shows nothing"
