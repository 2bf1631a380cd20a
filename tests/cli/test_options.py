"""Flags become the configuration they stand for."""

import os
from dataclasses import replace

import pytest

from forerun.cli.drafter_options import DrafterName, DrafterOptions, read_cores
from forerun.cli.options import DType, EngineOptions, ExactnessName, SamplingOptions
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import BUILTIN_TARGET, DraftModel, NoDrafter, Parallel, PromptLookup, parallel_draft
from forerun.core.errors import ConfigError

PARALLEL = DrafterName.PARALLEL
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
WORKER = "127.0.0.1:7070"


def test_no_flags_ask_for_the_defaults() -> None:
    drafter = DrafterOptions().config(BUILTIN_TARGET)
    assert EngineOptions().config(BUILTIN_TARGET, drafter) == EngineConfig(drafter=DraftModel())
    assert SamplingOptions().params() == SamplingParams()


@pytest.mark.parametrize(
    ("options", "model", "drafter"),
    [
        (DrafterOptions(), "m", PromptLookup()),
        (DrafterOptions(draft="d"), "m", DraftModel(model="d")),
        (DrafterOptions(drafter=DrafterName.NONE), BUILTIN_TARGET, NoDrafter()),
        (DrafterOptions(drafter=DrafterName.NGRAM, verify_width=4), "m", PromptLookup(verify_width=4)),
        (DrafterOptions(drafter=DrafterName.DRAFT_MODEL), BUILTIN_TARGET, DraftModel()),
        (DrafterOptions(draft="d", depth=2, children=3), "m", DraftModel(model="d", depth=2, children=3)),
        (DrafterOptions(drafter=PARALLEL), BUILTIN_TARGET, Parallel()),
    ],
)
def test_who_drafts(options: DrafterOptions, model: str, drafter: object) -> None:
    assert options.config(model) == drafter


def test_a_parallel_drafter_takes_the_named_draft_and_its_shape() -> None:
    options = DrafterOptions(drafter=PARALLEL, draft="d", verify_width=16, draft_width=6, children=3)
    shape = replace(parallel_draft(), model="d", verify_width=16, draft_width=6, children=3)
    assert options.config("m") == Parallel(draft=shape)


def test_a_parallel_drafter_goes_where_its_flags_say() -> None:
    text = ",".join(map(str, CORES))
    here = DrafterOptions(drafter=PARALLEL, drafter_cores=text, draft_device="cuda:1")
    assert here.config(BUILTIN_TARGET) == Parallel(cores=tuple(CORES), device="cuda:1")
    elsewhere = DrafterOptions(drafter=PARALLEL, drafter_address=WORKER, key_file="k", verify_width=4)
    assert elsewhere.config("m") == Parallel(
        address=WORKER, key_file="k", draft=replace(parallel_draft(), verify_width=4)
    )


@pytest.mark.parametrize("drafter", [DrafterName.DRAFT_MODEL, PARALLEL])
def test_a_drafter_that_needs_a_draft_says_so(drafter: DrafterName) -> None:
    with pytest.raises(ConfigError, match=f"--drafter {drafter} needs a draft for m: .* --draft"):
        DrafterOptions(drafter=drafter).config("m")


@pytest.mark.parametrize(
    ("options", "flag", "advice"),
    [
        (DrafterOptions(drafter=DrafterName.NONE, draft="d"), "--draft", "draft_model"),
        (DrafterOptions(drafter=DrafterName.NONE, verify_width=4), "--verify-width", "draft_model"),
        (DrafterOptions(draft_width=4), "--draft-width", "draft_model"),
        (DrafterOptions(drafter=PARALLEL, draft="d", depth=3), "--depth", "draft_model"),
        (DrafterOptions(draft="d", drafter_cores="1"), "--drafter-cores", "parallel"),
        (DrafterOptions(draft="d", draft_device="cpu"), "--draft-device", "parallel"),
        (DrafterOptions(drafter_address=WORKER), "--drafter-address", "parallel"),
        (DrafterOptions(drafter=DrafterName.NONE, key_file="k"), "--key-file", "parallel"),
        (DrafterOptions(children=2, drafter_address=WORKER), "--children and --drafter-address", "parallel"),
        (DrafterOptions(depth=2, drafter_address=WORKER), "--depth and --drafter-address", None),
    ],
)
def test_a_flag_of_another_drafter_is_refused(options: DrafterOptions, flag: str, advice: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} has no effect") as caught:
        options.config("m")
    _, _, end = str(caught.value).partition("leave it out")
    assert end == (f", or choose --drafter {advice}" if advice else "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DrafterOptions(draft="d", drafter_address=WORKER), "--draft has no effect on the worker"),
        (DrafterOptions(draft_device="cpu", drafter_address=WORKER), "--draft-device has no effect on the worker"),
        (DrafterOptions(drafter_cores="0", drafter_address=WORKER), "--drafter-cores has no effect on the worker"),
        (DrafterOptions(draft="d", key_file="k"), "key_file is of no use without an address"),
        (DrafterOptions(draft="d", drafter_cores="one"), "--drafter-cores 'one' must be numbers"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(options: DrafterOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(options, drafter=PARALLEL).config("m")


def test_cores_must_be_those_of_this_process() -> None:
    assert read_cores(None, flag="--cores") == ()
    assert read_cores(str(CORES[0]), flag="--cores") == (CORES[0],)
    if hasattr(os, "sched_getaffinity"):
        with pytest.raises(ConfigError, match=f"--cores 9999: core 9999 .*{CORES[0]}"):
            read_cores("9999", flag="--cores")


def test_the_choices_are_those_of_the_configuration() -> None:
    for dtype in DType:
        assert EngineOptions(dtype=dtype).config("m", NoDrafter()).dtype == dtype
    for exactness in ExactnessName:
        assert EngineOptions(exactness=exactness).config("m", NoDrafter()).exactness == exactness
