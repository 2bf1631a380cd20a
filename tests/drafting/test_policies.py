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
from forerun.drafting.policies import BEST_TREE, PAPER_TREE, Policies, RemotePolicy, TreePolicy


@pytest.mark.parametrize("config", [paper_layer_skip(), Parallel(draft=paper_layer_skip())], ids=["here", "elsewhere"])
def test_the_papers_search_draws_the_papers_trees_wherever_it_drafts(config: DrafterConfig) -> None:
    assert Policies.of(config).tree == PAPER_TREE


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
    with pytest.raises(ConfigError, match=r"without .'speed',. must be a tuple of one of send_ahead, lookup"):
        Parallel(without=("speed",))  # type: ignore[arg-type]
