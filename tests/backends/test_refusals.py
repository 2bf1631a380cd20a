"""Kernels without a mechanism that a model needs are refused by name, and torch's run instead."""

import random
from functools import partial

import pytest
import torch

from forerun.backends.choose import choose_backend
from forerun.backends.cpu.binding import fault
from forerun.backends.dtypes import Conditions
from forerun.core.config import KernelsName
from forerun.core.errors import ConfigError
from forerun.core.mechanisms import mechanisms_of
from forerun.core.model_spec import ModelSpec
from tests.tiny_families import FAMILIES, MIXED, family_spec

RUN = [*(family for family in FAMILIES if family not in MIXED), "gemma4_text"]


def conditions(spec: ModelSpec, kernels: KernelsName = "auto", *, is_shared: bool = False) -> Conditions:
    needed = mechanisms_of(spec, spec.max_positions)
    return Conditions(kernels=kernels, needed=needed, is_shared=is_shared)


@pytest.mark.parametrize("family", [*RUN, *MIXED])
def test_the_native_kernels_run_every_family(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    choice = choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec))
    assert choice.missing == fault()
    assert choice.backend.name == ("native" if fault() is None else "fused")


def test_tritons_kernels_are_refused_by_name() -> None:
    lacking = Conditions(kernels="triton", needed=frozenset({"a sliding attention window", "a new norm"}))
    with pytest.raises(ConfigError, match="the Triton kernels do not compute a new norm, which this model has"):
        choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=lacking)


@pytest.mark.parametrize("family", MIXED)
def test_tritons_kernels_are_refused_for_layers_without_attention_by_name(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    names = ["a shared expert"] * (family == "qwen3_next") + ["an output gate of attention", "gated delta nets"]
    name = "short convolutions" if family == "lfm2" else " or ".join(names)
    with pytest.raises(ConfigError, match=f"the Triton kernels do not compute {name}, which this model has"):
        choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=conditions(spec, "triton"))


@pytest.mark.parametrize("family", RUN)
def test_tritons_kernels_compute_every_family(family: str) -> None:
    pytest.importorskip("triton")
    spec = family_spec(random.Random(1), family)
    choice = choose_backend(
        "fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=conditions(spec, "triton")
    )  # fmt: skip
    assert choice.backend.name == "triton"


@pytest.mark.parametrize(
    ("dtype", "other_heads", "expected"),
    [
        (torch.bfloat16, {(512, 16), (64, 2)}, None),
        (torch.bfloat16, {(512, 17)}, "at most 16 query heads of a key head in bfloat16 with heads of 512 numbers"),
        (torch.float32, {(512, 1)}, "do not compute heads of 512 numbers in float32"),
        (torch.bfloat16, {(96, 1)}, "need heads of 16, 32, 64, 128, 256 or 512 numbers, and these have 96"),
    ],
)
def test_heads_of_any_layer_that_tritons_kernels_lack_are_named(
    dtype: torch.dtype, other_heads: set[tuple[int, int]], expected: str | None
) -> None:
    pytest.importorskip("triton")
    asked = partial(
        choose_backend, "fast", dtype=dtype, device="cpu", head_dim=64, other_heads=other_heads,
        conditions=Conditions(kernels="triton"),
    )  # fmt: skip
    if expected is None:
        assert asked().backend.name == "triton"
    else:
        with pytest.raises(ConfigError, match=f"the Triton kernels (take )?{expected}"):
            asked()


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
