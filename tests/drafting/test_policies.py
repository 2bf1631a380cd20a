"""The policies that a drafter has unless an experiment gives others."""

import pytest

from forerun.core.drafter_config import DrafterConfig, DraftModel, LayerSkip, Parallel, PromptLookup, paper_layer_skip
from forerun.drafting.policies import BEST_TREE, PAPER_TREE, Policies


@pytest.mark.parametrize("config", [paper_layer_skip(), Parallel(draft=paper_layer_skip())], ids=["here", "elsewhere"])
def test_the_papers_search_draws_the_papers_trees_wherever_it_drafts(config: DrafterConfig) -> None:
    assert Policies.of(config).tree == PAPER_TREE


@pytest.mark.parametrize("config", [LayerSkip(), Parallel(draft=LayerSkip()), DraftModel(model="x"), PromptLookup()])
def test_all_others_draw_the_best_known(config: DrafterConfig) -> None:
    assert Policies.of(config).tree == BEST_TREE
