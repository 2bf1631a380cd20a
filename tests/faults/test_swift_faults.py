"""The three faults that make SWIFT's published acceptance lossy: put back one by one, each is seen, and by the very
same checks our rounds have none of them."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest

from forerun.core.config import SamplingParams
from forerun.core.sublayers import ATTENTION, MLP, SkipSet
from forerun.decoding import host_loop as loop
from forerun.decoding.host_loop import Verifier, decode
from forerun.drafting.drafter import Drafter
from forerun.drafting.none import NoneDrafter
from forerun.model.runner import Runner
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, walk
from tests.drafting.layer_skip.original_swift import PaddedTarget, RawBonusTarget, RejectionSampler, padded_walk
from tests.drafting.layer_skip.playing import PROMPT, SPEC, drafter_on, target_for, weights_of
from tests.drafting.layer_skip.toy_law import NUM_TOKENS, Text, fit, joint_law, params_of, toy_target
from tests.marks import rest_slow
from tests.tiny import Weights
from tests.varied import Varied, layer_skip

GREEDY, SAMPLED = params_of(0.0, 1.0), params_of(1.0, 1.0)
LEAST_P = 1e-4
NUM_SEEDS = 1000
COMB = layer_skip(
    draft_width=1, depth=2, num_children=2, verify_width=5, looks_up=False, adaptive=False, search="off", min_mass=0.0
)
SKIPPED: SkipSet = frozenset((layer, kind) for layer in (1, 2) for kind in (ATTENTION, MLP))
Walk = Callable[[TokenTree, Sequence[int]], Acceptance]


def text_of(
    target: Runner,
    drafter: Drafter,
    params: SamplingParams,
    *,
    prompt_ids: Sequence[int] = PROMPT,
    seed: int = 0,
    num_tokens: int = NUM_TOKENS,
    side: type[Verifier] = Verifier,
) -> Text:
    """A request whose tokens this kind of target chooses."""
    noise = None if params.is_greedy else KeyedNoise(seed, target.spec.vocab_size)
    drafter.begin(prompt_ids, params, noise)
    target.sync(prompt_ids[:-1])
    rounds = decode(side(target, params, prompt_ids, noise), drafter, near_tie=0.0, num_tokens=num_tokens)
    return tuple(token for step in rounds for token in step.token_ids)[:num_tokens]


def drafted_texts(params: SamplingParams, side: type[Verifier]) -> list[Text]:
    target = toy_target(COMB)
    drafter = drafter_on(target, COMB, skipped=SKIPPED)
    return [text_of(target, drafter, params, seed=seed, side=side) for seed in range(NUM_SEEDS)]


def plain_texts(params: SamplingParams) -> list[Text]:
    target = toy_target(None)
    return [text_of(target, NoneDrafter(), params, seed=seed) for seed in range(NUM_SEEDS)]


def is_lossless(texts: Iterable[Text], params: SamplingParams, num_tokens: int = NUM_TOKENS) -> bool:
    return fit(texts, joint_law(params, num_tokens)) > LEAST_P


COLD, NARROW = params_of(0.6, 0.95), params_of(1.5, 0.5)


@pytest.mark.parametrize("params", rest_slow([COLD, NARROW], 1), ids=["cold", "narrow"])
def test_a_bonus_drawn_from_the_raw_logits_is_seen_and_ours_is_not(params: SamplingParams) -> None:
    """Fault 1: behind a path that was accepted whole, temperature and top-p are forgotten."""
    plain, faulty, ours = plain_texts(params), drafted_texts(params, RawBonusTarget), drafted_texts(params, Verifier)
    assert not is_lossless(faulty, params)
    assert sum(left != right for left, right in zip(faulty, plain, strict=True)) > NUM_SEEDS / 50
    assert is_lossless(ours, params)
    assert ours == plain


def test_a_raw_bonus_is_no_fault_where_nothing_shapes_the_logits() -> None:
    assert drafted_texts(SAMPLED, RawBonusTarget) == plain_texts(SAMPLED)


def sampled_by_rejection(params: SamplingParams, *, num_texts: int, num_tokens: int, **faults: bool) -> list[Text]:
    sampler = RejectionSampler(params=params, draft_skips=SKIPPED, num_siblings=4, **faults)
    rng = random.Random(1)
    return [sampler.text(rng, num_tokens) for _ in range(num_texts)]


# Where id 0 is likely, and enough draws to see the fault at each setting.
PADDED = {
    "temperature 1": (SAMPLED, 2, 20_000),
    "cold": (COLD, NUM_TOKENS, NUM_SEEDS),
    "narrow": (NARROW, NUM_TOKENS, 2 * NUM_SEEDS),
}


@pytest.mark.parametrize("name", rest_slow(PADDED, 1))
def test_a_pad_tested_like_a_drafted_token_is_seen_and_ours_is_not(name: str) -> None:
    """Fault 2: behind an accepted sibling a pad is tested as if the draft had been sure of id 0, and where it is
    rejected, what an unrelated node drafted is subtracted from the target's law."""
    params, num_tokens, num_texts = PADDED[name]
    params = replace(params, logit_bias={0: 2.0})
    draw = partial(sampled_by_rejection, params, num_texts=num_texts, num_tokens=num_tokens)
    assert is_lossless(draw(), params, num_tokens), "the method itself is sound"
    assert not is_lossless(draw(has_pads=True), params, num_tokens)
    ours = drafted_texts(params, Verifier)
    assert is_lossless([text[:num_tokens] for text in ours], params, num_tokens)
    assert ours == plain_texts(params)


@pytest.mark.parametrize("params", [COLD, NARROW], ids=["cold", "narrow"])
def test_the_raw_bonus_is_seen_in_the_original_method_as_well(params: SamplingParams) -> None:
    draw = partial(sampled_by_rejection, params, num_texts=NUM_SEEDS, num_tokens=NUM_TOKENS)
    assert is_lossless(draw(), params)
    assert not is_lossless(draw(has_raw_bonus=True), params)


# Fault 3, on targets of 29 tokens whose draft is often wrong while one of its runners-up is right.
VOCAB_SIZE, TEXT_LENGTH = SPEC.vocab_size, 30
BUSHY = COMB.changed(depth=3, num_children=3, verify_width=10)
PAD_ID = 2
TRAPS = {"id 0": 0, "the last id": VOCAB_SIZE - 1, "the pad id": PAD_ID}


@dataclass(frozen=True, kw_only=True)
class Trap:
    """A target that writes `token` right after a drafted sibling which has nothing below it."""

    weights: Weights
    prompt_ids: list[int]
    token: int

    def relabelled(self, token: int) -> "Trap":
        """The same target, but that this token and the other have changed names."""
        names = list(range(VOCAB_SIZE))
        names[self.token], names[token] = token, self.token
        weights = dict(self.weights)
        for table in ("embedding.weight", "head.weight"):
            weights[table] = weights[table][names]
        return Trap(weights=weights, prompt_ids=[names[one] for one in self.prompt_ids], token=token)

    def text(self, params: SamplingParams, config: Varied | None, side: type[Verifier] = Verifier) -> Text:
        target = target_for(config, self.weights)
        drafter = NoneDrafter() if config is None else drafter_on(target, config, skipped=SKIPPED)
        return text_of(target, drafter, params, prompt_ids=self.prompt_ids, num_tokens=TEXT_LENGTH, side=side)


@cache
def traps() -> list[Trap]:
    """One for each of some models: what they write behind the first sibling that is accepted."""
    found = []
    for seed in range(12):
        behind: list[int] = []

        class Noting(Verifier):
            def commit(self, tree: TokenTree, acceptance: Acceptance, behind: list[int] = behind) -> None:
                leaf = acceptance.path[-1] if acceptance.path else 0
                if leaf and leaf not in tree.parents and tree.depths[leaf] < max(tree.depths):
                    behind.append(acceptance.bonus_token)
                super().commit(tree, acceptance)

        trap = Trap(weights=weights_of(seed, scale=1.0), prompt_ids=PROMPT, token=0)
        trap.text(GREEDY, BUSHY, Noting)
        if behind:
            found.append(replace(trap, token=behind[0]))
    return found


@pytest.mark.parametrize("trap_id", rest_slow(TRAPS.values(), 1), ids=TRAPS)
def test_a_pad_taken_for_a_token_is_seen_and_ours_is_not(trap_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 3: where the target's next token after an accepted sibling is what short paths are padded with, the pad
    counts as a match, a wrong row is kept, and the token after it is read from an unrelated node."""
    relabelled = [trap.relabelled(trap_id) for trap in traps()]
    assert len(relabelled) >= 6
    plain = [trap.text(GREEDY, None) for trap in relabelled]
    assert [trap.text(GREEDY, BUSHY) for trap in relabelled] == plain
    monkeypatch.setattr(loop, "walk", partial(padded_walk, pad_token=trap_id))
    faulty = [trap.text(GREEDY, BUSHY, PaddedTarget) for trap in relabelled]
    assert sum(left != right for left, right in zip(faulty, plain, strict=True)) >= len(relabelled) / 2


@pytest.mark.parametrize("trap_id", TRAPS.values(), ids=TRAPS)
def test_no_id_is_a_trap_for_sampled_text(trap_id: int) -> None:
    for trap in traps():
        named = trap.relabelled(trap_id)
        params = SamplingParams(temperature=1.0, logit_bias={trap_id: 2.0})
        assert named.text(params, BUSHY) == named.text(params, None)


def test_the_walk_with_pads_is_the_honest_one_where_no_token_is_the_pads() -> None:
    """So that nothing but the pads is what the mutant differs in."""
    rng = random.Random(5)
    num_different = 0
    for _ in range(300):
        tree = TokenTree(1)
        while len(tree) < 8:
            parent, token = rng.randrange(len(tree)), rng.randint(1, 5)
            if token not in tree.children(parent):
                tree.add(parent, token, 0.0)
        choices = [rng.randint(1, 5) for _ in range(len(tree))]
        assert padded_walk(tree, choices).tokens == walk(tree, choices).tokens
        choices = [rng.randint(0, 2) for _ in range(len(tree))]
        num_different += padded_walk(tree, choices).tokens != walk(tree, choices).tokens
    assert num_different > 5
