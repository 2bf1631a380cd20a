"""The policies that a drafter has unless an experiment gives others."""

from typing import get_args

import pytest

from forerun.core.drafter_config import (
    Addition,
    DrafterConfig,
    DraftModel,
    LayerSkip,
    Parallel,
    PromptLookup,
    paper_layer_skip,
    paper_parallel,
)
from forerun.core.errors import ConfigError
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import BEST_TREE, PAPER_TREE, Policies, RemotePolicy, TreePolicy, num_candidates


@pytest.mark.parametrize("config", [paper_layer_skip(), Parallel(draft=paper_layer_skip())], ids=["here", "elsewhere"])
def test_the_papers_search_draws_the_papers_trees_wherever_it_drafts(config: DrafterConfig) -> None:
    assert Policies.of(config).tree == PAPER_TREE


def test_a_draft_of_the_papers_search_ends_at_the_confidence_that_is_set() -> None:
    assert Policies.of(LayerSkip(search="paper", confidence=0.6)).tree.min_confidence == 0.6


@pytest.mark.parametrize(
    ("confidence", "of_greedy", "of_sampled"),
    [(1.0, 3, 1), (0.951, 3, 1), (0.95, 5, 3), (0.8, 8, 5), (0.5, 10, 10), (0.0, 10, 10), (float("nan"), 10, 10)],
)
def test_the_confidence_in_a_token_sets_the_number_of_candidates(
    confidence: float, of_greedy: int, of_sampled: int
) -> None:
    assert num_candidates(confidence, is_greedy=True) == of_greedy
    assert num_candidates(confidence, is_greedy=False) == of_sampled


@pytest.mark.parametrize(("is_greedy", "numbers"), [(True, [3, 5, 8]), (False, [1, 3, 5])])
def test_only_the_chain_goes_on_and_it_ends_after_a_token_of_low_confidence(
    is_greedy: bool, numbers: list[int]
) -> None:
    guessed = GuessedTree(PAPER_TREE, verify_width=128, draft_width=1)
    guessed.reset([7])
    chain = [0]
    for confidence in (0.97, 0.9, 0.79):
        assert guessed.next_batch() == chain[-1:]
        guessed.add_link(chain[-1], range(10), [-0.1 * place for place in range(10)], confidence, is_greedy=is_greedy)
        chain.append(guessed.tree.children(chain[-1])[0])
    assert guessed.next_batch() == []
    assert [len(guessed.tree.children(node)) for node in chain] == [*numbers, 0]


@pytest.mark.parametrize("config", [LayerSkip(), Parallel(draft=LayerSkip()), DraftModel(model="x"), PromptLookup()])
def test_all_others_draw_the_best_known(config: DrafterConfig) -> None:
    assert Policies.of(config).tree == BEST_TREE


def test_parallel_drafting_without_its_additions_is_the_scheme_of_the_paper() -> None:
    paper = Policies.of(paper_parallel())
    remote = RemotePolicy(sends_ahead=False, looks_up=False, calibrates=False, foresees=False, max_repairs=1)
    assert paper.remote == remote
    assert paper.tree == TreePolicy(looks_up=False, knows_noise=False)
    assert Policies.of(Parallel()) == Policies()
    for addition in get_args(Addition):
        only = Policies.of(Parallel(without=(addition,)))
        assert only not in (paper, Policies()), f"{addition} alone is one difference"
    with pytest.raises(ConfigError, match="without 'speed' must be one of send_ahead, lookup"):
        Parallel(without=("lookup", "speed"))  # type: ignore[arg-type]
