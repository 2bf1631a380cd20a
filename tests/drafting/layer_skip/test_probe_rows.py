"""Rows added to a pass change nothing for its own rows, and say just what real drafts say."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.core.config import SamplingParams
from forerun.core.sublayers import SkipSet, skippable
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.drafting.layer_skip.probe_rows import ProbeLayout, ProbeRows
from forerun.drafting.layer_skip.search import CHAIN
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.referee.time_share import TimeShare
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.drafting.layer_skip.playing import (
    GREEDY,
    PROMPT,
    SAMPLED,
    SKIP_SETS,
    SPEC,
    drafter_on,
    ids_of,
    num_accepted,
    plain_ids,
    play,
    start_request,
    target_for,
    weights_of,
)
from tests.marks import in_turn, rest_slow
from tests.model.kernel_sets import EXACT_SETS
from tests.tiny import Weights, poison_freed_slots, proposal_of, tiny_runner
from tests.varied import layer_skip

EXACT_KERNELS = pytest.mark.parametrize("kernels", EXACT_SETS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
LAYOUT = ProbeLayout(SPEC.num_layers)
CONFIG = layer_skip(draft_width=2, depth=3, num_children=3, verify_width=8, search_share=1.0, adaptive=False)


def random_ids(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(SPEC.vocab_size) for _ in range(num)]


def random_probes(rng: random.Random, text: Sequence[int]) -> ProbeRows:
    length = rng.randint(1, min(6, len(text)))
    start = len(text) - length - rng.randint(0, min(3, len(text) - length))
    sets = list(SKIP_SETS.values())
    share = rng.random()
    sets.append(frozenset(part for part in skippable(SPEC.num_layers) if rng.random() < share))
    return ProbeRows(token_ids=text[start : start + length], start=start, skipped=rng.sample(sets, rng.randint(1, 4)))


def verification(text: Sequence[int], rng: random.Random) -> ForwardInput:
    """A tree behind the text, as the target runs it, in slots from the text's end on."""
    parents = random_parents(rng, rng.choice([1, 2, 9]))
    sees = ancestry_matrix(parents)
    return ForwardInput(
        token_ids=random_ids(rng, len(parents)),
        positions=[len(text) + int(row.sum()) - 1 for row in sees],
        first_slot=len(text),
        prefix_len=len(text),
        ancestry=sees if len(parents) > 1 else None,
        num_logit_rows=len(parents),
    )


def run(runner: Runner, inputs: ForwardInput, num_rows: int) -> tuple[Tensor, Tensor]:
    """Logits, and keys and values of the first rows; then the rows are forgotten."""
    first = runner.cache.reserve(len(inputs.token_ids))
    assert first == inputs.first_slot
    logits = runner.forward(inputs).logits[:num_rows]
    kept = runner.cache.storage_2LSKD[:, :, first : first + num_rows].clone()
    runner.cache.truncate(first)
    return logits, kept


def differences_of_the_host(seed: int, kernels: ModelBackend, dtype: torch.dtype) -> tuple[float, float]:
    rng = random.Random(seed)
    text = random_ids(rng, rng.randint(2, 60))
    runner = tiny_runner(SPEC, weights_of(dtype=dtype), backend=kernels)
    runner.sync(text)
    host = verification(text, rng)
    probes = random_probes(rng, text)
    num_host = len(host.token_ids)
    alone = run(runner, host, num_host)
    together = run(runner, LAYOUT.add_to(host, probes), num_host)
    logits, rows = (float((ours - theirs).abs().max()) for ours, theirs in zip(together, alone, strict=True))
    return logits, rows


@EXACT_KERNELS
@DTYPES
@pytest.mark.parametrize("seed", rest_slow(range(6), 3))
def test_a_verification_has_the_same_bits_with_and_without_riders(
    seed: int, dtype: torch.dtype, kernels: ModelBackend
) -> None:
    assert differences_of_the_host(seed, kernels, dtype) == (0.0, 0.0)


def drafted_logits(runner: Runner, text: Sequence[int], probes: ProbeRows, skipped: SkipSet) -> Tensor:
    """Logits at the probes' places by draft passes of one token each, over the text before the first of them."""
    runner.sync(text[: probes.start])
    logits = []
    for place, token in enumerate(probes.token_ids, probes.start):
        slot = runner.cache.reserve(1)
        inputs = ForwardInput(token_ids=[token], positions=[place], first_slot=slot, prefix_len=slot, skipped=skipped)
        logits.append(runner.forward(inputs).logits)
    runner.cache.truncate(probes.start)
    return torch.cat(logits)


@EXACT_KERNELS
@DTYPES
@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "along"])
@pytest.mark.parametrize("seed", rest_slow(range(5), 2))
def test_a_chain_of_riders_has_the_bits_of_a_draft_that_skips_the_same(
    seed: int, is_alone: bool, dtype: torch.dtype, kernels: ModelBackend
) -> None:
    rng = random.Random(seed)
    text = random_ids(rng, rng.randint(2, 60))
    runner = tiny_runner(SPEC, weights_of(dtype=dtype), backend=kernels)
    runner.sync(text)
    probes = random_probes(rng, text)
    host = verification(text, rng)
    inputs = LAYOUT.alone(probes, len(text)) if is_alone else LAYOUT.add_to(host, probes)
    num_rows = len(inputs.token_ids)
    logits, _ = run(runner, inputs, num_rows)
    for chain, rows in zip(
        probes.skipped, logits[num_rows - probes.num_rows :].split(len(probes.token_ids)), strict=True
    ):
        assert torch.equal(rows, drafted_logits(runner, text, probes, chain))


@dataclass(frozen=True, kw_only=True)
class Score:
    """What was told of one candidate of a request: its places in the text, what it guessed there, and its hits."""

    probes: ProbeRows
    skipped: SkipSet
    guesses: list[int]
    num_hits: int


def scores_of(
    drafter: LayerSkipDrafter, target: Runner, params: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], list[Score]]:
    """A request's whole text and every score that its search took, however long it takes on a busy machine."""
    monkeypatch.setattr(TimeShare, "is_open", True)
    gated = drafter.search
    assert isinstance(gated.strategy, GatedStrategy)
    scores: list[Score] = []
    told: list[tuple[SkipSet, float]] = []
    score = gated._score
    record = gated.strategy.told

    def note(probes: ProbeRows, logits: Tensor, draft: object) -> None:
        told.clear()
        score(probes, logits, draft)
        guesses = drafter._draft.guess(logits, [place + 1 for place in probes.places])
        for chain, (skipped, num_hits) in enumerate(told):
            assert skipped == probes.skipped[chain]
            rows = guesses[chain * CHAIN : (chain + 1) * CHAIN]
            scores.append(Score(probes=probes, skipped=skipped, guesses=rows, num_hits=int(num_hits)))

    def hear(skipped: SkipSet, num_hits: float, num_rows: float, *, is_draft: bool = False) -> None:
        if not is_draft:
            assert num_rows == CHAIN
            told.append((skipped, num_hits))
        record(skipped, num_hits, num_rows, is_draft=is_draft)

    monkeypatch.setattr(gated, "_score", note)
    monkeypatch.setattr(gated.strategy, "told", hear)
    rounds = play(target, drafter, params=params, num_tokens=60)
    assert num_accepted(rounds) > 0
    return [*PROMPT, *ids_of(rounds)], scores


def real_chain(
    target: Runner, weights: Weights, text: Sequence[int], skipped: SkipSet, params: SamplingParams, copy: str
) -> list[int]:
    """What a drafter that skips this set really drafts behind the text: one chain, in draft passes of its own."""
    config = layer_skip(
        draft_width=1, depth=CHAIN, num_children=1, verify_width=CHAIN + 1, min_mass=0.0, adaptive=False,
        looks_up=False, search="off", weights=copy,
    )  # fmt: skip
    drafter = drafter_on(target, config, skipped=skipped, copy_of=None if copy == "plain" else weights)
    start_request(target, drafter, text, params, seed=7, num_tokens=1)
    tree = proposal_of(drafter)
    return tree.token_ids[1:]


@EXACT_KERNELS
@pytest.mark.parametrize(("copy", "params"), in_turn(["int4", "plain", "int8"], [SAMPLED, GREEDY], 1))
def test_the_score_of_a_candidate_is_that_of_real_drafts_at_the_same_places(
    copy: str, params: SamplingParams, kernels: ModelBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real draft is fed its own guesses, so that it is comparable up to and with its first wrong one."""
    without_penalties = SamplingParams(temperature=params.temperature, top_p=params.top_p)
    weights = weights_of(scale=0.5, dtype=torch.float32)
    target = target_for(CONFIG, weights, backend=kernels)
    poison_freed_slots(target)
    config = CONFIG.changed(weights=copy)
    drafter = drafter_on(target, config, copy_of=None if copy == "plain" else weights, skipped=SKIP_SETS["only MLPs"])
    text, scores = scores_of(drafter, target, without_penalties, monkeypatch)
    assert text[len(PROMPT) :][:60] == plain_ids(weights, params=without_penalties, num_tokens=60, backend=kernels)
    assert len(scores) >= 20
    judge = target_for(CONFIG, weights, backend=kernels)
    for score in scores:
        start = score.probes.start
        truth = text[start + 1 : start + 1 + CHAIN]
        assert score.num_hits == sum(map(int.__eq__, score.guesses, truth))
        num_right = next((place for place in range(CHAIN) if score.guesses[place] != truth[place]), CHAIN)
        drafted = real_chain(judge, weights, text[: start + 1], score.skipped, without_penalties, copy)
        num_alike = min(num_right + 1, CHAIN)
        assert drafted[:num_alike] == score.guesses[:num_alike], score
    assert 0 < sum(score.num_hits for score in scores) < CHAIN * len(scores)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0)], ids=["greedy", "sampled"])
def test_riders_are_rows_of_the_verification_behind_its_own_and_leave_with_it(params: SamplingParams) -> None:
    weights = weights_of()
    target = target_for(CONFIG, weights, backend=REFERENCE)
    poison_freed_slots(target)
    drafter = drafter_on(target, CONFIG)
    widths: list[tuple[int, int]] = []
    extend = drafter.extend

    def note(host: ForwardInput) -> ForwardInput:
        extended = extend(host)
        widths.append((len(host.token_ids), len(extended.token_ids)))
        assert extended.num_logit_rows == len(extended.token_ids)
        assert extended.token_ids[: len(host.token_ids)] == host.token_ids
        return extended

    drafter.extend = note  # type: ignore[method-assign]
    num_rounds = 0
    for step in start_request(target, drafter, PROMPT, params, seed=7, num_tokens=60):
        assert target.cache.num_tree == 0
        num_rounds += 1
        if len(widths) == num_rounds:
            assert step.stats.num_verified == widths[-1][0], "probes are no drafted tokens"
        else:
            num_rounds = len(widths)
    added = [rows - own for own, rows in widths if rows > own]
    assert len(added) > len(widths) / 2 > 2
    assert all(rows % CHAIN == 0 for rows in added)
