"""A target's cache shared with its own draft: the text is the owner's, passes may leave things out, time is kept."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import FUSED, REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.pace import Pace
from forerun.core.sublayers import MLP, NOTHING, SkipSet, every_other_layer, kept_share
from forerun.model.executor import Executor, ForwardInput
from forerun.model.quantise import dequantise, quantise
from forerun.model.runner import Runner
from forerun.model.self_drafting import SharedCacheRunner
from forerun_lab.planner.virtual_time import VirtualClock
from tests.planner.fake_time import rule_time
from tests.tiny import CAPACITY, plain_spec, random_weights

SPEC = plain_spec(num_layers=4, hidden_size=32)
TEXT = [1, 2, 3, 4, 5]
PACE = Pace(steps=((2, 0.25), (4, 0.5)))
Passes = Callable[[], object]


def owner_of(seed: int = 6, pace: Pace | None = None) -> Runner:
    weights = random_weights(SPEC, torch.Generator().manual_seed(seed))
    return Runner(
        SPEC, LoadedWeights(weights), backend=FUSED, capacity=CAPACITY, dtype=torch.float64, device="cpu", pace=pace
    )


def copy_for(owner: Runner, seed: int) -> Executor:
    """Other weights on the owner's cache."""
    return FUSED.executor(SPEC, LoadedWeights(random_weights(SPEC, torch.Generator().manual_seed(seed))), owner.cache)


def draft_rows(runner: SharedCacheRunner, token_ids: list[int], skipped: SkipSet = NOTHING) -> Tensor:
    """A causal pass of some rows behind the text."""
    start = runner.cache.committed_len
    return runner.forward(
        ForwardInput(
            token_ids=token_ids,
            positions=list(range(start, start + len(token_ids))),
            first_slot=runner.cache.reserve(len(token_ids)),
            prefix_len=start,
            num_logit_rows=len(token_ids),
            skipped=skipped,
        )
    ).logits


def text_of(owner: Runner) -> tuple[list[int], int, Tensor]:
    """What the owner takes for its text, with the keys and values of it."""
    length = owner.cache.committed_len
    cache = owner.cache
    return list(owner.cached_ids), length, torch.stack((cache.keys_LSKD[:, :length], cache.values_LSKD[:, :length]))


def assert_same_text(left: tuple[list[int], int, Tensor], right: tuple[list[int], int, Tensor]) -> None:
    assert left[:2] == right[:2]
    assert torch.equal(left[2], right[2])


@pytest.mark.parametrize("has_copy", [False, True], ids=["own weights", "a copy"])
def test_draft_rows_never_become_text(has_copy: bool) -> None:
    owner = owner_of()
    owner.sync(TEXT)
    shared = SharedCacheRunner(owner, copy_for(owner, 9) if has_copy else None)
    before = text_of(owner)
    draft_rows(shared, [7, 8, 9], every_other_layer(SPEC.num_layers))
    assert owner.cache.num_tree == 3
    assert_same_text(text_of(owner), before)
    shared.drop_rows()
    assert owner.cache.num_tree == 0
    assert_same_text(text_of(owner), before)
    shared.drop_rows()
    assert_same_text(text_of(owner), before)


def test_what_a_draft_left_behind_the_text_changes_no_bit_of_what_follows() -> None:
    plain = owner_of()
    owner = owner_of()
    shared = SharedCacheRunner(owner, copy_for(owner, 9))
    for token_ids in (TEXT, [6], [7, 8]):
        expected = plain.extend(token_ids, num_logit_rows=len(token_ids))
        draft_rows(shared, [9] * 4)
        shared.drop_rows()
        assert torch.equal(owner.extend(token_ids, num_logit_rows=len(token_ids)), expected)


def test_it_shows_the_owners_text_and_follows_it() -> None:
    owner = owner_of()
    shared = SharedCacheRunner(owner)
    assert (shared.spec, shared.device, shared.cache) == (owner.spec, owner.device, owner.cache)
    for text in (TEXT, TEXT[:2], [*TEXT, 9], []):
        owner.sync(text)
        assert shared.cached_ids == text


@pytest.mark.parametrize("weight_format", ["int8", "int4"])
def test_a_rounded_copy_reads_the_text_that_the_exact_weights_left_in_the_cache(weight_format: str) -> None:
    """Against a pass of the rounded weights, written out plainly, over the same keys and values."""
    weights = random_weights(SPEC, torch.Generator().manual_seed(6))
    by_hand = dict(weights)
    for name, weight in weights.items():
        if weight.ndim == 2 and name != "embedding.weight":
            chosen = "int8" if name == "head.weight" else weight_format
            by_hand[name] = dequantise(quantise(weight, chosen)).double()  # type: ignore[arg-type]
    drafted = []
    for copied, chosen in ((weights, weight_format), (by_hand, "plain")):
        owner = owner_of()
        owner.sync(TEXT)
        copy = REFERENCE.executor(SPEC, LoadedWeights(copied, chosen), owner.cache)  # type: ignore[arg-type]
        drafted.append(draft_rows(SharedCacheRunner(owner, copy), [7, 8], every_other_layer(SPEC.num_layers)))
    assert torch.equal(*drafted)


def seconds_of(clock: VirtualClock, passes: Passes) -> float:
    began = clock.now
    passes()
    return clock.now - began


def test_a_pass_that_skips_half_takes_about_as_much_less_of_the_stated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = rule_time(monkeypatch)
    owner = owner_of(pace=PACE)
    shared = SharedCacheRunner(owner)
    assert seconds_of(clock, lambda: draft_rows(shared, [7])) == pytest.approx(0.25)
    assert seconds_of(clock, lambda: draft_rows(shared, [7, 8, 9])) == pytest.approx(0.5)
    every_mlp = frozenset((layer, MLP) for layer in range(SPEC.num_layers))
    for skipped in (every_mlp, every_other_layer(SPEC.num_layers)):
        share = kept_share(SPEC, skipped)
        assert 0.2 < share < 0.9
        assert seconds_of(clock, lambda some=skipped: draft_rows(shared, [7], some)) == pytest.approx(share * 0.25)  # type: ignore[misc]
