"""Drafters that cannot be asked for are refused, and the message names the setting."""

from math import nan
from typing import Any

import pytest

from forerun.core.drafter_config import CEILINGS, PAPERS, DraftHead, DraftModel, LayerSkip, PromptLookup
from forerun.core.errors import ConfigError
from forerun.drafting.policies import LookupPolicy, RemotePolicy, SkipPolicy, TreePolicy

SHAPE = ("verify_width", "depth")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({name: value}, f"{name} {value} must be >= 1") for name in SHAPE for value in (0, -1)),
        ({"search": "swift"}, "search 'swift' must be one of gated, paper, off"),
        ({"search": ""}, "search '' must be"),
        ({"weights": "int3"}, "weights 'int3' must be one of plain, int8, int4"),
        ({"weights": "bfloat16"}, "weights 'bfloat16' must be"),
        ({"bayes": False, "window": 8}, "window and bayes belong to SWIFT's search, but search is 'gated'"),
        *(
            ({"search": "paper", name: value}, f"{name} .* must ")
            for name, (least, most) in PAPERS.items()
            for value in (least - 1, most + 1, "much")
        ),
    ],
    ids=str,
)
def test_a_wrong_setting_of_self_speculation_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LayerSkip(**changes)


@pytest.mark.parametrize("config", [DraftModel, DraftHead])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": 3}, "model 3 must be a string"),
        ({"model": ""}, "the model of a drafter is an empty string: give"),
        ({"verify_width": "8"}, "verify_width '8' must be a whole number"),
        ({"adaptive": 1}, "adaptive 1 must be True or False"),
    ],
    ids=str,
)
def test_a_wrong_setting_of_a_draft_is_named(config: type[Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**{"model": "x", **values})


@pytest.mark.parametrize("name", CEILINGS)
@pytest.mark.parametrize("config", [DraftModel, LayerSkip, PromptLookup], ids=lambda config: config.__name__)
def test_every_drafters_tree_has_a_floor_and_a_ceiling_with_a_reason(name: str, config: type[Any]) -> None:
    if not hasattr(config(), name):
        pytest.skip(f"{config.__name__} has no {name}")
    ceiling, reason = CEILINGS[name]
    assert "GPU" not in reason, "it is the same on a CPU"
    assert getattr(config(**{name: ceiling}), name) == ceiling
    for value in (ceiling + 1, 100_000):
        with pytest.raises(ConfigError, match=rf"{name} {value} must be <= {ceiling}: {reason}"):
            config(**{name: value})
    with pytest.raises(ConfigError, match=f"{name} 0 must be >= 1"):
        config(**{name: 0})


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        *((TreePolicy, {"num_children": value}, "num_children -?[0-9]+ must lie in") for value in (0, -1, 17, 100_000)),
        *(
            (TreePolicy, {name: value}, rf"{name} .* must lie in \[0, 1\]")
            for name in ("min_mass", "min_confidence")
            for value in (-0.1, 1.1, nan)
        ),
        *((SkipPolicy, {"search_share": value}, "search_share .* must lie in") for value in (0.0, 1.5, nan)),
        (SkipPolicy, {"draft_width": 0}, "draft_width 0 must be >= 1"),
        (SkipPolicy, {"seed": -1}, "seed -1 of the search must be >= 0"),
        *((LookupPolicy, {"lengths": value}, "match lengths .* must fall") for value in ((), (2, 4), (3, 0), (65, 2))),
        (RemotePolicy, {"max_repairs": 0}, "max_repairs 0 must lie in"),
        (RemotePolicy, {"max_lateness": -0.5}, "max_lateness -0.5 must lie in"),
    ],
)
def test_a_wrong_policy_is_named(kind: type[Any], values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(**values)
