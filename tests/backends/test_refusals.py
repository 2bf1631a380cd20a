"""Kernels without a mechanism that a model needs are refused by name, and torch's run instead."""

import random

import pytest
import torch

from forerun.backends.choose import choose_backend
from forerun.backends.dtypes import Conditions
from forerun.core.config import KernelsName
from forerun.core.errors import ConfigError
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import ModelSpec
from tests.tiny import tiny_spec
from tests.tiny_families import FAMILIES, family_spec

CAPPED = {"family": "gemma4_text", "logit_cap": 30.0}


def conditions(spec: ModelSpec, kernels: KernelsName = "auto", *, is_shared: bool = False) -> Conditions:
    needed = mechanisms_of(spec, spec.max_positions)
    return Conditions(kernels=kernels, needed=needed, is_shared=is_shared)


def test_capped_logits_run_on_torchs_kernels_which_says_why() -> None:
    spec = tiny_spec(random.Random(0), **CAPPED)
    choice = choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec))
    assert choice.backend.name == "fused"
    assert choice.missing == "the native kernels do not compute capped logits, which this model has"


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "smollm3"])
def test_tritons_kernels_are_refused_by_name(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    with pytest.raises(ConfigError, match="the Triton kernels do not compute "):
        choose_backend(
            "fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=conditions(spec, "triton")
        )  # fmt: skip


def test_norms_over_all_heads_of_several_ranks_are_refused() -> None:
    spec = family_spec(random.Random(1), "olmo2")
    choice = choose_backend(
        "fast", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec, is_shared=True)
    )
    assert choice.missing is not None
    assert "of several ranks do not compute norms of queries and keys over all heads" in choice.missing
