"""A target that drafts for itself: the plain text at every edge, and drafts only where they pay."""

from collections.abc import Sequence

import pytest

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import paper_layer_skip
from forerun.core.sublayers import SkipSet
from forerun.decoding.decoder import Round
from forerun.drafting.layer_skip.drafter import LayerSkipDrafter
from forerun.drafting.layer_skip.gated_strategy import GatedStrategy
from forerun.model.runner import Runner
from tests.drafting.layer_skip.playing import (
    GREEDY,
    PROMPT,
    SAMPLED,
    SKIP_SETS,
    drafter_on,
    ids_of,
    num_accepted,
    num_drafted,
    plain_ids,
    play,
    start_request,
    target_for,
    weights_of,
)
from tests.marks import in_turn, rest_slow
from tests.tiny import poison_freed_slots
from tests.varied import Varied, layer_skip, varied

PARAMS = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
WEIGHTS = weights_of()
CHAIN = {"draft_width": 1, "depth": 5, "num_children": 1, "verify_width": 6}
TREE = {"draft_width": 3, "depth": 3, "num_children": 3, "verify_width": 9}
NAMES = ["off", "gated", "paper"]
SEARCHES = pytest.mark.parametrize("search", NAMES)
SEARCHES_IN_TURN = pytest.mark.parametrize(("search", "params"), in_turn(NAMES, [GREEDY, SAMPLED]))
PLAIN = {"search": "off", "adaptive": False, "looks_up": False, "min_mass": 0.0}


def pair(config: Varied, skipped: SkipSet | None = None, *, max_length: int = 128) -> tuple[Runner, LayerSkipDrafter]:
    """A target and its drafter; what the target forgets is lost for good."""
    target = target_for(config, WEIGHTS, max_length=max_length)
    poison_freed_slots(target)
    return target, drafter_on(target, config, skipped=skipped)


@pytest.mark.parametrize(("params", "shape"), in_turn([GREEDY, SAMPLED], [CHAIN, TREE]))
@pytest.mark.parametrize("name", SKIP_SETS)
def test_any_set_gives_the_plain_text(name: str, params: SamplingParams, shape: dict[str, int]) -> None:
    target, drafter = pair(layer_skip(**PLAIN, **shape), SKIP_SETS[name])
    rounds = play(target, drafter, params=params)
    assert drafter.search.strategy.skipped == SKIP_SETS[name]
    assert ids_of(rounds, 40) == plain_ids(WEIGHTS, params=params)
    assert 0 < num_accepted(rounds) < num_drafted(rounds) or name == "nothing"


@PARAMS
def test_a_draft_that_skips_nothing_has_every_chain_accepted(params: SamplingParams) -> None:
    target, drafter = pair(layer_skip(**PLAIN, **CHAIN), SKIP_SETS["nothing"])
    rounds = play(target, drafter, params=params)
    assert all(step.stats.num_accepted == step.stats.num_drafted == 5 for step in rounds)


@pytest.mark.parametrize("lengths", rest_slow([(*range(1, 9), 46), range(9, 16)], 1))
@SEARCHES_IN_TURN
def test_the_text_can_end_at_any_token_of_a_draft_and_the_next_request_is_not_disturbed(
    search: str, params: SamplingParams, lengths: Sequence[int]
) -> None:
    plain = plain_ids(WEIGHTS, params=params, num_tokens=46)
    next_prompt = [*PROMPT, *plain[:9], 2, 7]
    next_plain = plain_ids(WEIGHTS, next_prompt, params, num_tokens=10)
    target, drafter = pair(layer_skip(**TREE, search=search, search_share=1.0))
    num_cut = 0
    for length in lengths:
        rounds = play(target, drafter, params=params, num_tokens=length)
        num_cut += len(ids_of(rounds)) - length
        assert ids_of(rounds, length) == plain[:length]
        assert ids_of(play(target, drafter, next_prompt, params, num_tokens=10), 10) == next_plain
    assert num_cut > 0, "no text ended inside a draft"


@pytest.mark.parametrize(("search", "num_prompt"), in_turn(NAMES, [1, 30, 63]))
def test_the_context_can_be_filled_to_its_last_place(search: str, num_prompt: int) -> None:
    prompt_ids = [(7 * place) % 29 for place in range(num_prompt)]
    num_tokens = 64 - num_prompt
    plain = plain_ids(WEIGHTS, prompt_ids, SAMPLED, num_tokens=num_tokens)
    for shape in (CHAIN, TREE, {"draft_width": 4, "depth": 9, "verify_width": 2}):
        config = layer_skip(**shape, search=search, search_share=1.0)
        target, drafter = pair(config, max_length=64)
        assert ids_of(play(target, drafter, prompt_ids, SAMPLED, num_tokens=num_tokens), num_tokens) == plain


@SEARCHES_IN_TURN
def test_a_prompt_that_begins_with_the_last_text_is_not_computed_again(search: str, params: SamplingParams) -> None:
    target, drafter = pair(layer_skip(**TREE, search=search, search_share=1.0))
    first = play(target, drafter, params=params, num_tokens=36)
    held = list(target.cached_ids)
    assert held == [*PROMPT, *ids_of(first)][:-1]
    prompt_ids = [*held, 2, 7]
    assert target.sync(prompt_ids[:-1]) == len(held)
    again = play(target, drafter, prompt_ids, params, num_tokens=36)
    assert ids_of(again, 36) == plain_ids(WEIGHTS, prompt_ids, params, num_tokens=36)
    shorter = play(target, drafter, prompt_ids[:20], params, num_tokens=36)
    assert ids_of(shorter, 36) == plain_ids(WEIGHTS, prompt_ids[:20], params, num_tokens=36)


@SEARCHES_IN_TURN
def test_two_texts_written_by_turns_are_those_written_alone(search: str, params: SamplingParams) -> None:
    """Two targets, of different weights, sets and searches, in one process."""
    others = weights_of(2)
    config = layer_skip(**TREE, search=search, search_share=1.0)
    target, drafter = pair(config)
    other_target = target_for(layer_skip(**CHAIN), others)
    other_drafter = drafter_on(other_target, layer_skip(**CHAIN, seed=5), skipped=SKIP_SETS["only MLPs"])
    running = start_request(target, drafter, PROMPT, params, seed=7, num_tokens=60)
    other = start_request(other_target, other_drafter, [2, 7], params, seed=8, num_tokens=60)
    texts: tuple[list[int], list[int]] = ([], [])
    for _ in range(30):
        for text, rounds in zip(texts, (running, other), strict=True):
            step: Round | None = next(rounds, None)
            text += [] if step is None else step.token_ids
    assert min(map(len, texts)) >= 30
    assert texts[0] == plain_ids(WEIGHTS, params=params, num_tokens=150)[: len(texts[0])]
    assert texts[1] == plain_ids(others, [2, 7], params, seed=8, num_tokens=150)[: len(texts[1])]


@PARAMS
def test_the_papers_trees_are_chains_with_siblings_by_confidence(params: SamplingParams) -> None:
    target, drafter = pair(varied(paper_layer_skip()))
    rounds = play(target, drafter, params=params, num_tokens=100)
    assert ids_of(rounds, 100) == plain_ids(WEIGHTS, params=params, num_tokens=100)
    ends = set()
    for tree in filter(None, (step.stats.tree for step in rounds)):
        numbers = [tree.parents.count(node) for node in range(len(tree.token_ids)) if node in tree.parents]
        assert set(numbers) <= ({3, 5, 8, 10} if params.is_greedy else set(range(1, 11)))  # a filter leaves fewer
        assert len({tree.parents[node] for node in range(1, len(tree.parents))}) == len(numbers) <= 25
        ends.add(numbers[-1])
    assert ends & {8, 10}, "a draft ends below the confidence of 0.8"


def test_the_report_says_what_is_skipped_and_how_the_search_goes() -> None:
    target, drafter = pair(varied(paper_layer_skip(), max_steps=6))
    rounds = play(target, drafter, num_tokens=100)
    reports = [step.stats.skips for step in rounds]
    first = reports[0]
    last = reports[-1]
    assert first is not None
    assert last is not None
    assert (first.is_searching, first.matchness, first.num_scored, first.attention) == (True, None, 0, (1, 3))
    assert first.search_s < last.search_s
    assert (last.is_searching, last.num_scored) == (False, 7)
    skipped = [*((layer, "attention") for layer in last.attention), *((layer, "mlp") for layer in last.mlp)]
    assert frozenset(skipped) == drafter.search.strategy.skipped
    assert last.matchness is not None
    assert 0.0 < last.matchness <= 1.0
    assert last.hit_rate is not None
    assert 0.0 <= last.hit_rate <= 1.0


def test_a_set_that_was_found_outlives_its_request_and_what_it_was_scored_on_does_not() -> None:
    target, drafter = pair(layer_skip(**CHAIN, search="gated", search_share=1.0))
    search = drafter.search
    starts: list[int] = []
    gather = search._gather

    def note(*arguments: object) -> object:
        probes = gather(*arguments)
        starts.extend([] if probes is None else [probes.start])
        return probes

    search._gather = note  # type: ignore[method-assign, assignment]
    play(target, drafter, num_tokens=100)
    strategy = search.strategy
    assert isinstance(strategy, GatedStrategy)
    found = strategy.skipped
    num_scored = strategy.num_scored
    assert num_scored > 0
    prompt_ids = [*PROMPT, *range(20, 29)]
    starts.clear()
    running = start_request(target, drafter, prompt_ids, GREEDY, seed=7, num_tokens=30)
    assert (drafter.search, drafter.search.strategy.skipped) == (search, found)
    assert strategy.num_scored == num_scored
    list(running)
    assert starts
    assert min(starts) >= len(prompt_ids) - 1, "scored on what the target did not choose"
