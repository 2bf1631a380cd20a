"""Kernels without a mechanism that a model needs are refused by name, and torch's run instead."""

import random

import pytest
import torch

from forerun.backends.choose import choose_backend
from forerun.backends.cpu.binding import fault
from forerun.backends.dtypes import Conditions
from forerun.core.config import KernelsName
from forerun.core.errors import ConfigError
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import ModelSpec
from tests.tiny_families import FAMILIES, family_spec


def conditions(spec: ModelSpec, kernels: KernelsName = "auto", *, is_shared: bool = False) -> Conditions:
    needed = mechanisms_of(spec, spec.max_positions)
    return Conditions(kernels=kernels, needed=needed, is_shared=is_shared)


@pytest.mark.parametrize("family", [*FAMILIES, "gemma4_text"])
def test_the_native_kernels_run_every_family(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    choice = choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec))
    assert choice.missing == fault()
    assert choice.backend.name == ("native" if fault() is None else "fused")


@pytest.mark.parametrize(
    ("family", "missing"),
    [("gpt_oss", "a clamped gate or experts"), ("gemma4_text", ".*a factor of each layer.*")],
)
def test_tritons_kernels_are_refused_by_name(family: str, missing: str) -> None:
    spec = family_spec(random.Random(1), family)
    with pytest.raises(ConfigError, match=f"the Triton kernels do not compute {missing}, which this model has"):
        choose_backend(
            "fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=conditions(spec, "triton")
        )  # fmt: skip


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gpt_oss"])
def test_tritons_kernels_compute_all_of_the_other_families(family: str) -> None:
    pytest.importorskip("triton")
    spec = family_spec(random.Random(1), family)
    choice = choose_backend(
        "fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=conditions(spec, "triton")
    )  # fmt: skip
    assert choice.backend.name == "triton"


def test_norms_over_all_heads_of_several_ranks_are_refused() -> None:
    spec = family_spec(random.Random(1), "olmo2")
    choice = choose_backend(
        "fast", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec, is_shared=True)
    )
    assert choice.missing is not None
    with pytest.raises(ConfigError, match="the Triton kernels of several ranks do not compute norms of queries"):
        choose_backend(
            "fast", dtype=torch.float32, device="cpu", head_dim=16,
            conditions=conditions(spec, "triton", is_shared=True),
        )  # fmt: skip
    assert "of several ranks do not compute norms of queries and keys over all heads" in choice.missing
