"""Flags become the configuration they stand for."""

import os
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from forerun.cli.drafter_options import DrafterName, DrafterOptions, DraftWeights, LayerSearchName, read_cores
from forerun.cli.options import OWN_TO_MODELS, DType, EngineOptions, ExactnessName, SamplingOptions, settle
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import (
    BUILTIN_TARGET,
    DraftModel,
    LayerSearch,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    paper_layer_skip,
    parallel_draft,
)
from forerun.core.errors import ConfigError
from forerun.core.model_spec import WeightFormat

PARALLEL = DrafterName.PARALLEL
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
WORKER = "127.0.0.1:7070"
LAYER_SKIP = DrafterName.LAYER_SKIP


def test_no_flags_ask_for_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But that a command has a cache folder and tells what drafting gains, which others may not want."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    drafter = DrafterOptions().config(BUILTIN_TARGET)
    expected = EngineConfig(drafter=PromptLookup(), measures_speedup=True)
    assert EngineOptions().config(BUILTIN_TARGET, drafter) == expected
    assert SamplingOptions().params() == SamplingParams()


def test_what_the_model_says_holds_where_a_flag_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    of_model = SamplingParams(temperature=0.6, top_p=0.9, repetition_penalty=1.05)
    assert settle(SamplingOptions(), of_model) == of_model
    said = caplog.messages[0]
    assert "generation_config.json says: temperature 0.6, top_p 0.9, repetition_penalty 1.05; --temp" in said
    assert settle(SamplingOptions(top_p=1.0, top_k=5), of_model) == replace(of_model, top_p=1.0, top_k=5)
    assert "says: temperature 0.6, repetition_penalty 1.05;" in caplog.messages[1]
    assert settle(SamplingOptions(temperature=0.0), of_model) == SamplingParams()
    assert settle(SamplingOptions(temperature=0.0, top_p=0.5), of_model) == SamplingParams(top_p=0.5)
    everything = {name: getattr(of_model, name) for name in OWN_TO_MODELS}
    assert settle(SamplingOptions(**everything), of_model) == of_model
    assert settle(SamplingOptions(), SamplingParams()) == SamplingParams()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("options", "model", "drafter"),
    [
        (DrafterOptions(), "m", PromptLookup()),
        (DrafterOptions(draft="d"), "m", DraftModel(model="d")),
        (DrafterOptions(drafter=DrafterName.NONE), BUILTIN_TARGET, NoDrafter()),
        (DrafterOptions(drafter=DrafterName.NGRAM, verify_width=4), "m", PromptLookup(verify_width=4)),
        (DrafterOptions(drafter=DrafterName.DRAFT_MODEL), BUILTIN_TARGET, DraftModel()),
        (DrafterOptions(draft="d", depth=2, draft_width=3), "m", DraftModel(model="d", depth=2, draft_width=3)),
        (DrafterOptions(drafter=PARALLEL), BUILTIN_TARGET, Parallel()),
        (DrafterOptions(drafter=LAYER_SKIP), "m", LayerSkip()),
        (DrafterOptions(drafter=LAYER_SKIP), BUILTIN_TARGET, LayerSkip()),
        (DrafterOptions(drafter=PARALLEL, draft="self"), "m", Parallel(draft=LayerSkip())),
        (DrafterOptions(draft="self"), "m", LayerSkip()),
        (DrafterOptions(drafter=DrafterName.NGRAM, depth=5), "m", PromptLookup(verify_width=6)),
        (DrafterOptions(speculative_config='{"model": "d"}'), "m", DraftModel(model="d")),
        (
            DrafterOptions(
                speculative_config='{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}'
            ),
            "m",
            PromptLookup(verify_width=6),
        ),
        (DrafterOptions(draft="self", draft_weights=DraftWeights.INT4), "m", LayerSkip(weights="int4")),
    ],
)
def test_who_drafts(options: DrafterOptions, model: str, drafter: object) -> None:
    assert options.config(model) == drafter


def test_a_parallel_drafter_takes_the_named_draft_and_its_shape() -> None:
    options = DrafterOptions(drafter=PARALLEL, draft="d", verify_width=16, draft_width=6)
    shape = replace(parallel_draft(), model="d", verify_width=16, draft_width=6)
    assert options.config("m") == Parallel(draft=shape)


def test_a_parallel_drafter_goes_where_its_flags_say() -> None:
    text = ",".join(map(str, CORES))
    here = DrafterOptions(drafter=PARALLEL, drafter_cores=text, draft_device="cuda:1")
    assert here.config(BUILTIN_TARGET) == Parallel(cores=tuple(CORES), device="cuda:1")
    elsewhere = DrafterOptions(drafter=PARALLEL, drafter_address=WORKER, key_file="k", verify_width=4)
    assert elsewhere.config("m") == Parallel(
        address=WORKER, key_file="k", draft=replace(parallel_draft(), verify_width=4)
    )


def test_every_flag_of_a_target_that_drafts_for_itself_finds_its_field() -> None:
    options = DrafterOptions(
        drafter=LAYER_SKIP, verify_width=9, depth=5, adaptive=False, search=LayerSearchName.OFF, skip_sets="sets.json",
        draft_weights=DraftWeights.INT4,
    )  # fmt: skip
    expected = LayerSkip(
        verify_width=9, depth=5, adaptive=False, search="off", sets="sets.json", weights="int4"
    )  # fmt: skip
    assert options.config("m") == expected


def test_the_papers_search_brings_the_papers_settings() -> None:
    options = DrafterOptions(drafter=LAYER_SKIP, search=LayerSearchName.PAPER)
    assert options.config("m") == paper_layer_skip()
    assert replace(options, depth=8).config("m") == replace(paper_layer_skip(), depth=8)


def test_what_is_kept_of_the_target_can_draft_beside_it() -> None:
    options = DrafterOptions(
        drafter=PARALLEL, draft="self", skip_sets="sets.json", draft_weights=DraftWeights.INT8, verify_width=8,
        adaptive=False, draft_device="cuda:1",
    )  # fmt: skip
    draft = LayerSkip(sets="sets.json", weights="int8", verify_width=8, adaptive=False)
    assert options.config("m") == Parallel(draft=draft, device="cuda:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DrafterOptions(drafter=LAYER_SKIP, depth=0), "depth 0 must be >= 1"),
        (DrafterOptions(draft="d", draft_width=0), "draft_width 0 must be >= 1"),
        (DrafterOptions(drafter=PARALLEL, draft="self", verify_width=2000), "verify_width 2000 must be <= 128"),
    ],
)
def test_values_out_of_range_are_refused_by_name(options: DrafterOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.config("m")


@pytest.mark.parametrize(
    "options",
    [
        DrafterOptions(draft="d", skip_sets="sets.json"),
        DrafterOptions(draft="d", draft_weights=DraftWeights.INT8),
        DrafterOptions(drafter_address=WORKER, draft_weights=DraftWeights.INT8),
    ],
)
def test_flags_of_a_draft_by_the_target_are_refused_where_another_model_drafts(options: DrafterOptions) -> None:
    with pytest.raises(ConfigError, match="has no effect"):
        replace(options, drafter=PARALLEL).config("m")


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
        (DrafterOptions(draft_width=2, drafter_address=WORKER), "--draft-width and --drafter-address", "parallel"),
        (
            DrafterOptions(search=LayerSearchName.OFF, drafter_address=WORKER),
            "--search and --drafter-address",
            None,
        ),
        (DrafterOptions(search=LayerSearchName.OFF), "--search", "layer_skip"),
        (DrafterOptions(drafter=DrafterName.NONE, draft_weights=DraftWeights.PLAIN), "--draft-weights", "layer_skip"),
        (DrafterOptions(draft="d", skip_sets="s"), "--skip-sets", "layer_skip"),
        (DrafterOptions(drafter_address=WORKER, key_file="k"), "--drafter-address and --key-file", "parallel"),
        (DrafterOptions(drafter=PARALLEL, draft="self", search=LayerSearchName.GATED), "--search", "layer_skip"),
        (DrafterOptions(drafter=LAYER_SKIP, draft_width=3), "--draft-width", "draft_model"),
        (DrafterOptions(drafter=PARALLEL, draft="self", depth=3), "--depth", "draft_model"),
        (DrafterOptions(drafter=LAYER_SKIP, draft="d"), "--draft", "draft_model"),
        (DrafterOptions(drafter=LAYER_SKIP, drafter_cores="1"), "--drafter-cores", "parallel"),
        (DrafterOptions(drafter=LAYER_SKIP, drafter_address=WORKER), "--drafter-address", "parallel"),
    ],
)
def test_a_flag_of_another_drafter_is_refused(options: DrafterOptions, flag: str, advice: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} {'have' if ' and ' in flag else 'has'} no effect") as caught:
        options.config("m")
    _, _, end = str(caught.value).partition("leave it out")
    assert end == (f", or choose --drafter {advice}" if advice else "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DrafterOptions(draft="d", drafter_address=WORKER), "--draft has no effect on the worker"),
        (DrafterOptions(draft_device="cpu", drafter_address=WORKER), "--draft-device has no effect on the worker"),
        (DrafterOptions(drafter_cores="0", drafter_address=WORKER), "--drafter-cores has no effect on the worker"),
        (DrafterOptions(draft="self", draft_width=3), "--draft-width has no effect on --draft self"),
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
    assert tuple(LayerSearchName) == get_args(LayerSearch)
    assert tuple(DraftWeights) == get_args(WeightFormat)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "asks for the method None: there are ngram and draft_model"),
        ('{"method": "eagle"}', "asks for the method 'eagle'"),
        ('{"method": "draft_model"}', "names none"),
        ('{"methode": "ngram"}', "has 'methode', which means nothing here"),
        ('{"method": "ngram", "model": "d"}', "has 'model', which has no effect on the method ngram"),
        ('{"method": "ngram", "num_speculative_tokens": "5"}', "verify_width"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "verify_width True"),
    ],
)
def test_a_speculative_config_that_cannot_be_had_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DrafterOptions(speculative_config=text).config("m")
    with pytest.raises(ConfigError, match="goes without other flags"):
        DrafterOptions(speculative_config=text, depth=2).config("m")


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        (EngineOptions(dtype=DType("bf16")), "bfloat16"),
        (EngineOptions(dtype=DType("half")), "float16"),
        (EngineOptions(quantization="int4"), "int4"),
    ],
)
def test_dtypes_have_the_names_that_other_programs_give_them(options: EngineOptions, dtype: str) -> None:
    assert options.config("m", NoDrafter()).dtype == dtype


def test_a_quantisation_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match="--quantization awq must be int8 or int4"):
        EngineOptions(quantization="awq").config("m", NoDrafter())
    with pytest.raises(ConfigError, match="exclude each other"):
        EngineOptions(quantization="int4", dtype=DType.FLOAT32).config("m", NoDrafter())
