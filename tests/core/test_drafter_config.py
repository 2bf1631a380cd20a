"""Drafters that cannot be asked for are refused, and the message names the setting."""

from math import nan
from typing import Any

import pytest

from forerun.core.drafter_config import CEILINGS, DraftModel, LayerSkip, PromptLookup, paper_layer_skip
from forerun.core.errors import ConfigError

SHAPE = ("verify_width", "draft_width", "depth", "children")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: value}, f"{name} {value} must be >= 1") for name in SHAPE for value in (0, -1)),
        ({"min_mass": -0.1}, r"min_mass -0\.1 must lie in \[0, 1\]"),
        ({"min_mass": 1.1}, r"min_mass 1\.1 must lie in \[0, 1\]"),
        ({"min_mass": nan}, "min_mass nan must lie"),
        ({"min_confidence": -0.1}, r"min_confidence -0\.1 must lie in \[0, 1\]"),
        ({"min_confidence": 1.1}, r"min_confidence 1\.1 must lie in \[0, 1\]"),
        ({"min_confidence": nan}, "min_confidence nan must lie"),
        ({"search_share": 0.0}, r"search_share 0\.0 must lie in \(0, 1\]"),
        ({"search_share": 1.5}, r"search_share 1\.5 must lie in \(0, 1\]"),
        ({"search_share": nan}, "search_share nan must lie"),
        ({"search": "swift"}, "search 'swift' must be one of gated, paper, off"),
        ({"search": ""}, "search '' must be"),
        ({"weights": "int3"}, "weights 'int3' must be one of plain, int8, int4"),
        ({"weights": "bfloat16"}, "weights 'bfloat16' must be"),
        ({"seed": -1}, "seed -1 of the search must be >= 0"),
    ],
    ids=str,
)
def test_a_wrong_setting_of_self_speculation_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LayerSkip(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        dict.fromkeys(SHAPE, 1),
        {"min_mass": 0.0, "min_confidence": 0.0},
        {"min_mass": 1.0, "min_confidence": 1.0, "search_share": 1.0},
        *({"search": search} for search in ("gated", "paper", "off")),
        *({"weights": weights} for weights in ("plain", "int8", "int4")),
        {"seed": 0},
    ],
    ids=str,
)
def test_settings_at_their_limits_are_fine(changes: dict[str, Any]) -> None:
    built = LayerSkip(**changes)
    assert {name: getattr(built, name) for name in changes} == changes


@pytest.mark.parametrize("name", CEILINGS)
@pytest.mark.parametrize("config", [DraftModel, LayerSkip, PromptLookup], ids=lambda config: config.__name__)
def test_every_drafters_tree_has_a_floor_and_a_ceiling_with_a_reason(name: str, config: type[Any]) -> None:
    if not hasattr(config(), name):
        pytest.skip(f"{config.__name__} has no {name}")
    ceiling, reason = CEILINGS[name]
    assert getattr(config(**{name: ceiling}), name) == ceiling
    for value in (ceiling + 1, 100_000):
        with pytest.raises(ConfigError, match=rf"{name} {value} must be <= {ceiling}: {reason}"):
            config(**{name: value})
    with pytest.raises(ConfigError, match=f"{name} 0 must be >= 1"):
        config(**{name: 0})


def test_the_paper_drafts_chains_while_it_is_sure_of_them() -> None:
    paper = paper_layer_skip()
    assert (paper.search, paper.draft_width, paper.min_confidence, paper.depth) == ("paper", 1, 0.8, 25)
    assert (paper.adaptive, paper.lookup, paper.noise_aware) == (False, False, False)
    assert (paper.min_mass, paper.weights, paper.sets, paper.skipped) == (0.0, "plain", None, ())
