"""Whole requests with draft heads: every root is expanded with what the target computed for the text before it."""

import random
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftHead
from forerun.core.pace import Pace
from forerun.core.sublayers import SkipSet
from forerun.decoding.drafters import Drafters
from forerun.drafting.heads.dflash_network import DFlashDrafter, DFlashExecutor
from forerun.drafting.heads.drafter import HeadDrafter
from forerun.drafting.heads.eagle_network import EagleDrafter, EagleExecutor
from forerun.speculation.tree import TokenTree
from tests.drafting.heads.dflash_reference import dflash_outputs, logits_after
from tests.drafting.heads.eagle_reference import Floats, eagle_logits
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
from tests.tiny import decode_ids, decode_rounds, plain_spec, random_weights, tiny_runner

TARGET = plain_spec(num_layers=3, vocab_size=5)  # so few tokens that many guesses are right
WEIGHTS = random_weights(TARGET, torch.Generator().manual_seed(1))
CONFIG = DraftHead(model="-", verify_width=12, depth=3, adaptive=False)
PROMPT = [3, 1, 4, 1, 0, 2]


def features_of(text: list[int], taps: tuple[int, ...]) -> dict[int, Floats]:
    """The target's features of a text, in the order of the head, from one pass over all of it."""
    ascending = tuple(sorted(set(taps)))
    features = tiny_runner(TARGET, WEIGHTS).append(text, num_logit_rows=0, taps=ascending).features
    assert features is not None
    return dict(enumerate(features[:, [ascending.index(layer) for layer in taps]].numpy()))


class Checked:
    """A drafter whose every expansion of a root is compared with the reference."""

    def __init__(self, kind: Literal["eagle3", "dflash"], seed: int, config: DraftHead = CONFIG) -> None:
        rng = random.Random(seed)
        body = random_body(random.Random(seed), vocab_size=TARGET.vocab_size, num_layers=1)
        self.num_roots = 0
        self.missing = -1
        sizes = {"target_vocab_size": TARGET.vocab_size}
        if kind == "eagle3":
            eagle = random_eagle(rng, TARGET, body=body)
            self.tensors = eagle_tensors(eagle, TARGET, seed)
            self.taps = eagle.taps(3)
            head = eagle_head(eagle, self.tensors)
            runner = runner_of(body, lambda cache: EagleExecutor(head, cache))
            self.drafter: HeadDrafter = EagleDrafter(runner, config, taps=self.taps, **sizes)
            self.after_root = lambda text: eagle_logits(eagle, self.arrays, text, self.features(text))
        else:
            block = random_dflash(rng, TARGET, body=body, windows=(None,), is_causal=(False,))
            self.tensors = dflash_tensors(block, TARGET, seed)
            self.taps = block.taps(3)
            many = dflash_head(block, self.tensors)
            runner = runner_of(body, lambda cache: DFlashExecutor(many, cache))
            self.drafter = DFlashDrafter(runner, config, taps=self.taps, **sizes)
            self.after_root = lambda text: logits_after(
                block, self.arrays, dflash_outputs(block, self.arrays, text[-1], len(text) - 1, self.features(text)), 0,
                text[-1],
            )  # fmt: skip
        self.arrays = {name: tensor.numpy() for name, tensor in self.tensors.items()}
        rows = self.drafter._draft._rows
        self._expand = rows.expand  # type: ignore[method-assign]
        rows.expand = self.expand

    def features(self, text: list[int]) -> dict[int, Floats]:
        known = features_of(text[:-1], self.taps)
        known.pop(self.missing, None)
        return known

    def expand(
        self, tree: TokenTree, batch: list[int], token_ids: list[int], text: list[int], skipped: SkipSet
    ) -> Tensor:
        logits = self._expand(tree, batch, token_ids, text, skipped)
        if batch[0] == 0:
            expected = self.after_root(text)
            found = logits[0].numpy()
            is_there = np.isfinite(expected)
            assert np.abs(found[is_there] - expected[is_there]).max() <= 1e-10
            self.num_roots += 1
        return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
@pytest.mark.parametrize("seed", range(2))
def test_roots_are_expanded_with_the_targets_features(
    kind: Literal["eagle3", "dflash"], temperature: float, seed: int
) -> None:
    checked = Checked(kind, seed)
    params = SamplingParams(temperature=temperature)
    target = tiny_runner(TARGET, WEIGHTS)
    expected = decode_ids(target, Drafters(), PROMPT, params, seed=3, num_tokens=16)
    target.sync(())
    rounds = decode_rounds(target, checked.drafter, PROMPT, params, seed=3, num_tokens=16)
    assert [token for step in rounds for token in step.token_ids][:16] == expected
    assert sum(step.stats.num_accepted for step in rounds) > 0 or params.is_greedy  # which may have no luck
    assert checked.num_roots == len(rounds)
    if kind == "eagle3":  # the token behind the text that both caches hold follows a feature that is no more
        checked.missing = 3
    decode_rounds(target, checked.drafter, [*PROMPT[:4], 2, 2], params, seed=3, num_tokens=6)
    assert checked.num_roots > len(rounds)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_nothing_is_drafted_if_only_the_root_is_verified(
    kind: Literal["eagle3", "dflash"], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Checked(kind, 1, replace(CONFIG, verify_width=1)).drafter
    for name in ("expand", "draft"):
        monkeypatch.setattr(drafter._draft._rows, name, lambda *_: pytest.fail("it drafts"), raising=False)
    rounds = decode_rounds(tiny_runner(TARGET, WEIGHTS), drafter, PROMPT, SamplingParams(), seed=3, num_tokens=80)
    assert [step.stats.num_drafted for step in rounds] == [0] * len(rounds)
    assert len(drafter._features) < 80, "features of committed tokens are read"


@pytest.mark.parametrize(("speed", "drafts"), [(0.5, False), (2.0, True)])
def test_a_head_that_is_known_not_to_pay_reads_nothing_of_a_prompt(speed: float, drafts: bool) -> None:
    checked = Checked("eagle3", 1)
    text = [*PROMPT, *PROMPT, *PROMPT, *PROMPT]
    drafter = Drafters({"head": checked.drafter}, is_adaptive=True, known={"greedy": {"head": speed}})
    drafter.calibrate(lambda widths, *, budget_s=0.0: Pace(steps=((64, 1.0),)))
    checked.drafter._reading = Pace(steps=((64, 5.0),))
    greedy = SamplingParams(temperature=0.0)
    rounds = decode_rounds(tiny_runner(TARGET, WEIGHTS), drafter, text, greedy, seed=3, num_tokens=16)
    assert (checked.num_roots > 0) == drafts
    assert bool(checked.drafter._runner.cached_ids) == drafts
    assert drafts or not len(checked.drafter._features)
    assert bool(drafter.taps) == drafts, "the target need not copy what nobody reads"
    plain = decode_ids(tiny_runner(TARGET, WEIGHTS), Drafters(), text, greedy, seed=3, num_tokens=16)
    assert [token for step in rounds for token in step.token_ids][:16] == plain
