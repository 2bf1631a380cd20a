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
from tests.tiny_families import FAMILIES, MIXED, TORCH_ONLY, family_spec

RUN = [*(family for family in FAMILIES if family not in MIXED), "gemma4_text"]


def conditions(spec: ModelSpec, kernels: KernelsName = "auto", *, is_shared: bool = False) -> Conditions:
    needed = mechanisms_of(spec, spec.max_positions)
    return Conditions(kernels=kernels, needed=needed, is_shared=is_shared)


@pytest.mark.parametrize("family", [name for name in (*RUN, *MIXED) if name not in TORCH_ONLY])
def test_the_native_kernels_run_every_family(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    choice = choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec))
    assert choice.missing == fault()
    assert choice.backend.name == ("native" if fault() is None else "fused")


def test_tritons_kernels_are_refused_by_name() -> None:
    lacking = Conditions(kernels="triton", needed=frozenset({"a sliding attention window", "a new norm"}))
    with pytest.raises(ConfigError, match="the Triton kernels do not compute a new norm, which this model has"):
        choose_backend("fast", dtype=torch.float32, device="cpu", head_dim=16, conditions=lacking)


def test_tritons_kernels_refuse_a_cache_in_8_bits() -> None:
    choose = partial(choose_backend, "fast", dtype=torch.bfloat16, head_dim=16)
    for kernels, device in (("triton", "cpu"), ("auto", "cuda:0")):
        with pytest.raises(ConfigError, match='cache "int8" is not for the Triton kernels, which would run on'):
            choose(device=device, conditions=Conditions(kernels=kernels, cache="int8"))  # type: ignore[arg-type]
    assert choose(device="cuda:0", conditions=Conditions(kernels="torch", cache="int8")).backend.name == "fused"


LACKING = {
    "qwen3_5_text": ["an output gate of attention", "gated delta nets"],
    "qwen3_next": ["a shared expert", "an output gate of attention", "gated delta nets"],
    "lfm2": ["short convolutions"],
    "lfm2_moe": ["experts chosen by sigmoids", "short convolutions"],
    "granitemoehybrid": ["Mamba 2 layers"],
    "nemotron_h": [
        "Mamba 2 layers", "a shared expert without a gate", "a squared ReLU without a gate",
        "experts chosen by sigmoids", "layers of one sublayer",
    ],
}  # fmt: skip


@pytest.mark.parametrize("family", TORCH_ONLY)
def test_what_the_native_kernels_lack_is_named_and_torch_runs_it(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    choice = choose_backend("exact", dtype=torch.float32, device="cpu", head_dim=8, conditions=conditions(spec))
    name = " or ".join(name for name in LACKING[family] if name != "short convolutions")
    assert choice.missing == f"the native kernels do not compute {name}, which this model has"
    assert choice.backend.name == "reference"


@pytest.mark.parametrize("family", MIXED)
def test_tritons_kernels_are_refused_for_layers_without_attention_by_name(family: str) -> None:
    spec = family_spec(random.Random(1), family)
    name = " or ".join(LACKING[family])
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
