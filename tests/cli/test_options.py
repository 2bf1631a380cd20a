"""Flags become the configuration they stand for."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from forerun.cli.drafter_options import DrafterOptions, read_cores
from forerun.cli.flag_values import reader_of
from forerun.cli.options import OWN_TO_MODELS, EngineOptions, SamplingOptions, settle
from forerun.core.config import DTypeName, EngineConfig, SamplingParams, WeightsName
from forerun.core.drafter_config import (
    BUILTIN_TARGET,
    Automatic,
    DraftHead,
    DraftModel,
    LayerSkip,
    NoDrafter,
    Parallel,
    PromptLookup,
    paper_layer_skip,
    paper_parallel,
)
from forerun.core.errors import ConfigError

PARALLEL = "parallel"
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0, 1]
WORKER = "127.0.0.1:7070"
LAYER_SKIP = "layer_skip"


def test_no_flags_ask_for_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But that a command takes a GPU, has a cache folder and tells what drafting gains, which others may not want."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    drafter = DrafterOptions().config(BUILTIN_TARGET)
    expected = EngineConfig(drafter=Automatic(), device="auto", measures_speedup=True)
    assert EngineOptions().config(BUILTIN_TARGET, drafter) == expected
    assert SamplingOptions().params() == SamplingParams()


def test_variables_of_the_chat_template_are_one_json_object() -> None:
    options = EngineOptions(chat_template="chatml", chat_template_kwargs='{"enable_thinking": false, "n": [1]}')
    config = options.config("m", NoDrafter())
    assert config.chat_template == "chatml"
    assert config.chat_template_kwargs == {"enable_thinking": False, "n": [1]}
    for text in ("enable_thinking=false", "[1]", 5000 * "["):
        with pytest.raises(ConfigError, match=r"--chat-template-kwargs '.*(not valid JSON|JSON object, such as)"):
            EngineOptions(chat_template_kwargs=text).config("m", NoDrafter())


def test_what_the_model_says_holds_where_a_flag_does_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    of_model = SamplingParams(temperature=0.6, top_p=0.9, repetition_penalty=1.05)
    assert settle(SamplingOptions(), of_model) == of_model
    said = caplog.messages[0]
    assert "as set by the model: temperature 0.6, top_p 0.9, repetition_penalty 1.05; --temp" in said
    assert settle(SamplingOptions(top_p=1.0, top_k=5), of_model) == replace(of_model, top_p=1.0, top_k=5)
    assert "set by the model: temperature 0.6, repetition_penalty 1.05;" in caplog.messages[1]
    assert settle(SamplingOptions(temperature=0.0), of_model) == SamplingParams()
    assert settle(SamplingOptions(temperature=0.0, top_p=0.5), of_model) == SamplingParams(top_p=0.5)
    everything = {name: getattr(of_model, name) for name in OWN_TO_MODELS}
    assert settle(SamplingOptions(**everything), of_model) == of_model
    assert settle(SamplingOptions(), SamplingParams()) == SamplingParams()
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    ("options", "model", "drafter"),
    [
        (DrafterOptions(), "m", Automatic()),
        (DrafterOptions(draft="d"), "m", Automatic(draft=DraftModel(model="d"))),
        (DrafterOptions(draft="d", drafter="draft_model"), "m", DraftModel(model="d")),
        (DrafterOptions(draft="d", adaptive=False, depth=2), "m", DraftModel(model="d", depth=2, adaptive=False)),
        (DrafterOptions(drafter="none"), BUILTIN_TARGET, NoDrafter()),
        (DrafterOptions(drafter="ngram", verify_width=4), "m", PromptLookup(verify_width=4)),
        (DrafterOptions(drafter="draft_model"), BUILTIN_TARGET, DraftModel()),
        (
            DrafterOptions(draft="d", depth=2, draft_width=3),
            "m",
            Automatic(draft=DraftModel(model="d", depth=2, draft_width=3)),
        ),
        (DrafterOptions(drafter=PARALLEL), BUILTIN_TARGET, Parallel()),
        (DrafterOptions(drafter="parallel_paper", draft="d"), "m", paper_parallel("d")),
        (DrafterOptions(drafter="layer_skip_paper"), "m", paper_layer_skip()),
        (DrafterOptions(drafter=PARALLEL, without=["lookup"]), BUILTIN_TARGET, Parallel(without=("lookup",))),
        (DrafterOptions(drafter=LAYER_SKIP), "m", LayerSkip()),
        (DrafterOptions(drafter=LAYER_SKIP), BUILTIN_TARGET, LayerSkip()),
        (DrafterOptions(drafter=PARALLEL, draft="self"), "m", Parallel(draft=LayerSkip())),
        (DrafterOptions(draft="self"), "m", LayerSkip()),
        (DrafterOptions(drafter="ngram", depth=5), "m", PromptLookup(verify_width=6)),
        (DrafterOptions(speculative_config='{"model": "d"}'), "m", DraftModel(model="d")),
        (
            DrafterOptions(speculative_config='{"method": "eagle3", "model": "h", "num_speculative_tokens": 5}'),
            "m",
            DraftHead(model="h", depth=5),
        ),
        (DrafterOptions(speculative_config='{"method": "dflash", "model": "h"}'), "m", DraftHead(model="h")),
        (
            DrafterOptions(
                speculative_config='{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}'
            ),
            "m",
            PromptLookup(verify_width=6),
        ),
        (DrafterOptions(draft="self", draft_weights="int4"), "m", LayerSkip(weights="int4")),
    ],
)
def test_who_drafts(options: DrafterOptions, model: str, drafter: object) -> None:
    assert options.config(model) == drafter


def test_every_flag_of_a_target_that_drafts_for_itself_finds_its_field() -> None:
    options = DrafterOptions(
        drafter=LAYER_SKIP, verify_width=9, depth=5, adaptive=False, search="off", skip_sets="sets.json",
        draft_weights="int4",
    )  # fmt: skip
    expected = LayerSkip(
        verify_width=9, depth=5, adaptive=False, search="off", sets="sets.json", weights="int4"
    )  # fmt: skip
    assert options.config("m") == expected


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
        DrafterOptions(draft="d", draft_weights="int8"),
        DrafterOptions(drafter_address=WORKER, draft_weights="int8"),
    ],
)
def test_flags_of_a_draft_by_the_target_are_refused_where_another_model_drafts(options: DrafterOptions) -> None:
    with pytest.raises(ConfigError, match="has no effect"):
        replace(options, drafter=PARALLEL).config("m")


@pytest.mark.parametrize(
    ("options", "flag", "advice"),
    [
        (DrafterOptions(drafter="none", draft="d"), "--draft", "draft_model"),
        (DrafterOptions(drafter="none", verify_width=4), "--verify-width", "draft_model"),
        (DrafterOptions(drafter=PARALLEL, draft="d", depth=3), "--depth", "draft_model"),
        (DrafterOptions(draft="d", drafter_cores="1"), "--drafter-cores", "parallel"),
        (DrafterOptions(draft="d", draft_device="cpu"), "--draft-device", "parallel"),
        (DrafterOptions(drafter="draft_model", draft="d", draft_ranks=2), "--draft-ranks", "parallel"),
        (DrafterOptions(drafter_address=WORKER), "--drafter-address", "parallel"),
        (DrafterOptions(drafter="none", key_file="k"), "--key-file", "parallel"),
        (DrafterOptions(draft_width=2, drafter_address=WORKER), "--draft-width and --drafter-address", "parallel"),
        (DrafterOptions(search="off", drafter_address=WORKER), "--search and --drafter-address", None),
        (DrafterOptions(search="off"), "--search", "layer_skip"),
        (DrafterOptions(drafter="none", draft_weights="plain"), "--draft-weights", "layer_skip"),
        (DrafterOptions(draft="d", skip_sets="s"), "--skip-sets", "layer_skip"),
        (DrafterOptions(drafter_address=WORKER, key_file="k"), "--drafter-address and --key-file", "parallel"),
        (DrafterOptions(drafter=PARALLEL, draft="self", search="gated"), "--search", "layer_skip"),
        (DrafterOptions(drafter=LAYER_SKIP, draft_width=3), "--draft-width", "draft_model"),
        (DrafterOptions(drafter=PARALLEL, draft="self", depth=3), "--depth", "draft_model"),
        (DrafterOptions(drafter=LAYER_SKIP, draft="d"), "--draft", "draft_model"),
        (DrafterOptions(drafter=LAYER_SKIP, drafter_cores="1"), "--drafter-cores", "parallel"),
        (DrafterOptions(drafter=LAYER_SKIP, drafter_address=WORKER), "--drafter-address", "parallel"),
        (DrafterOptions(drafter="parallel_paper", draft="d", without=["noise"]), "--without", "parallel"),
        (DrafterOptions(drafter="layer_skip_paper", search="gated"), "--search", "layer_skip"),
    ],
)
def test_a_flag_of_another_drafter_is_refused(options: DrafterOptions, flag: str, advice: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} {'have' if ' and ' in flag else 'has'} no effect") as caught:
        options.config("m")
    _, _, end = str(caught.value).partition("leave it out")
    assert end == (f", or choose --drafter {advice}" if advice else "")


@pytest.mark.parametrize(
    ("options", "flag"),
    [(DrafterOptions(draft_width=4), "--draft-width"), (DrafterOptions(adaptive=False), "--fixed-widths")],
)
def test_flags_of_a_tree_need_a_draft(options: DrafterOptions, flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} has no effect .* leave it out, or name a draft with --draft$"):
        options.config("m")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DrafterOptions(draft="d", drafter_address=WORKER), "--draft has no effect on the worker"),
        (DrafterOptions(draft_device="cpu", drafter_address=WORKER), "--draft-device has no effect on the worker"),
        (DrafterOptions(drafter_cores="0", drafter_address=WORKER), "--drafter-cores has no effect on the worker"),
        (DrafterOptions(draft_ranks=2, drafter_address=WORKER), "--draft-ranks has no effect on the worker"),
        (DrafterOptions(draft="self", draft_width=3), "--draft-width has no effect on --draft self"),
        (DrafterOptions(draft="d", key_file="k"), "key_file has no effect without an address"),
        (DrafterOptions(draft="d", drafter_cores="one"), "--drafter-cores 'one' must be numbers"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(options: DrafterOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(options, drafter=PARALLEL).config("m")


def test_cores_must_be_those_of_this_process() -> None:
    assert read_cores(None, flag="--cores") == ()
    assert read_cores(str(CORES[0]), flag="--cores") == (CORES[0],)
    assert read_cores(f"{CORES[0]}-{CORES[0]}", flag="--cores") == (CORES[0],)
    for text in ("a", "1-", "1,,2"):
        with pytest.raises(ConfigError, match="must be numbers separated by commas, such as 2,3, or a range"):
            read_cores(text, flag="--cores")
    if hasattr(os, "sched_getaffinity"):
        with pytest.raises(ConfigError, match=f"--cores 9999: .* core 9999: .*{CORES[0]}"):
            read_cores("9999", flag="--cores")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "asks for the unknown method None: the known ones are ngram, draft_model, eagle3, dflash"),
        ('{"method": "eagle"}', "asks for the unknown method 'eagle'"),
        ('{"method": "draft_model"}', "names no model"),
        ('{"methode": "ngram"}', "has the unknown key 'methode'"),
        ('{"method": "ngram", "model": "d"}', "has 'model', which has no effect on the method ngram"),
        ('{"method": "ngram", "num_speculative_tokens": "5"}', "verify_width"),
        ('{"method": "ngram", "num_speculative_tokens": true}', "verify_width True"),
    ],
)
def test_a_speculative_config_that_cannot_be_had_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DrafterOptions(speculative_config=text).config("m")
    with pytest.raises(ConfigError, match="cannot be used with other drafter flags"):
        DrafterOptions(speculative_config=text, depth=2).config("m")


@pytest.mark.parametrize(
    ("text", "name"), [("bf16", "bfloat16"), ("half", "float16"), ("float32", "float32"), ("int8", "int8")]
)
def test_dtypes_have_the_names_that_other_programs_give_them(text: str, name: str) -> None:
    assert reader_of(DTypeName)(text) == name  # type: ignore[misc]
    with pytest.raises(typer.BadParameter, match="'int3' must be one of auto, float32"):
        reader_of(DTypeName)("int3")  # type: ignore[misc]
    with pytest.raises(typer.BadParameter, match="'awq' must be one of stored, int8, int4"):
        reader_of(WeightsName)("awq")  # type: ignore[misc]


def test_a_dtype_of_8_bits_means_weights_of_8_bits_as_it_used_to() -> None:
    config = EngineOptions(dtype="int8").config("m", NoDrafter())
    assert (config.dtype, config.weights) == ("auto", "int8")
    config = EngineOptions(dtype="float32", weights="int4").config("m", NoDrafter())
    assert (config.dtype, config.weights) == ("float32", "int4")
    with pytest.raises(ConfigError, match="--dtype int8 and --weights int4 cannot be used together"):
        EngineOptions(dtype="int8", weights="int4").config("m", NoDrafter())
    with pytest.raises(ConfigError, match="dtype 'int8' is a weight format: set weights to it"):
        EngineConfig(dtype="int8")  # type: ignore[arg-type]
