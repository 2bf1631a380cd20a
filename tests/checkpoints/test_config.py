"""config.json to ModelSpec: what each family means, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.huggingface.generation import read_stop_ids
from forerun.core.config import EngineConfig
from forerun.core.errors import CheckpointError
from forerun.core.mechanisms import WINDOW, mechanisms_of
from forerun.core.model_spec import ModelSpec, RopeSpec
from forerun.engine.model_loading import resolve_max_length
from tests.checkpoints.folders import write_config, write_json

LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
REQUIRED_KEYS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
)


def read(folder: Path, **changes: Any) -> ModelSpec:
    return read_model_spec(write_config(folder, **changes))


def refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(folder, **changes)
    assert str(folder / "config.json") in str(caught.value)
    return str(caught.value)


def test_a_llama_config_is_read_in_full(tmp_path: Path) -> None:
    assert read(tmp_path) == ModelSpec(
        family="llama",
        num_layers=2,
        hidden_size=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=2,
        intermediate_size=12,
        vocab_size=16,
        max_positions=64,
        norm_eps=1e-5,
    )


def test_qwen2_always_has_a_qkv_bias_and_never_another(tmp_path: Path) -> None:
    spec = read(tmp_path, model_type="qwen2", use_sliding_window=False, sliding_window=8)
    assert (spec.qkv_bias, spec.out_bias, spec.mlp_bias, spec.qk_norm) == (True, False, False, False)


def test_qwen3_has_norms_on_heads_and_a_head_size_of_its_own(tmp_path: Path) -> None:
    spec = read(tmp_path, model_type="qwen3", head_dim=6, tie_word_embeddings=True)
    assert (spec.qk_norm, spec.head_dim, spec.qkv_bias, spec.tied_embeddings) == (True, 6, False, True)
    assert read(tmp_path, model_type="qwen3").head_dim == 128


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_absent_keys_take_the_defaults_of_transformers(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    keys = ("tie_word_embeddings", "attention_bias", "mlp_bias", "rope_theta", "sliding_window", "hidden_act")
    spec = read(tmp_path, model_type=family, max_position_embeddings=4096, **dict.fromkeys(keys, ...))
    default = transformers.AutoConfig.for_model(family)
    assert spec.tied_embeddings == default.tie_word_embeddings
    assert spec.mlp_bias == getattr(default, "mlp_bias", False)
    assert spec.out_bias == getattr(default, "attention_bias", False)
    assert spec.rope.theta == default.to_dict().get("rope_parameters", {"rope_theta": 10000.0})["rope_theta"]


@pytest.mark.parametrize("window", [None, 64, 4096])
def test_mistral_without_an_effective_window_is_accepted(tmp_path: Path, window: int | None) -> None:
    assert read(tmp_path, model_type="mistral", sliding_window=window).family == "mistral"


def test_a_window_slides_over_longer_texts(tmp_path: Path) -> None:
    spec = read(tmp_path, model_type="mistral", sliding_window=63)
    assert (spec.max_positions, spec.window, spec.sliding_layers) == (64, 63, (0, 1))
    absent = read(tmp_path, model_type="mistral", max_position_embeddings=8192)
    assert (absent.max_positions, absent.window) == (8192, 4096)
    assert resolve_max_length(EngineConfig(), spec) == 64
    assert mechanisms_of(spec, 64) == {WINDOW}
    assert not mechanisms_of(spec, 63), "no text of this length leaves the window"


def test_a_limit_beyond_the_positions_is_cut_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = read(tmp_path, model_type="mistral")
    assert resolve_max_length(EngineConfig(target="m", max_length=64), spec) == 64
    assert not caplog.records
    for _ in range(2):
        assert resolve_max_length(EngineConfig(target="m", max_length=65), spec) == 64
    said = "max_length 65 is more than the 64 positions of m: texts have at most 64 tokens"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"use_sliding_window": False}, None),
        ({}, None),
        ({"use_sliding_window": True, "max_window_layers": 2}, None),
        ({"use_sliding_window": True}, None),  # its default, 28 full layers, is more than there are
        ({"use_sliding_window": True, "max_window_layers": 1}, 8),
        ({"use_sliding_window": True, "max_window_layers": 0}, 8),
        ({"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None}, None),
        ({"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 64}, None),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 2, "max_window_layers": 0}, None),
        ({"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}, 8),
    ],
)
def test_qwen_slides_where_transformers_slides(
    tmp_path: Path, family: str, changes: dict[str, Any], window: int | None
) -> None:
    transformers = pytest.importorskip("transformers")
    spec = read(tmp_path, model_type=family, **{"sliding_window": 8, **changes})
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (spec.window, spec.max_positions) == (window, 64)
    if window is not None:
        sliding = [layer for layer, kind in enumerate(theirs.layer_types) if kind == "sliding_attention"]
        assert list(spec.sliding_layers) == sliding
    slides = theirs.sliding_window is not None and "sliding_attention" in theirs.layer_types
    assert (slides and theirs.sliding_window < 64) == (window is not None)


@pytest.mark.parametrize(
    ("changes", "factor", "attention_factor", "original"),
    [
        ({"factor": 4.0, "original_max_position_embeddings": 16}, 4.0, 1.1386, 16),
        ({"original_max_position_embeddings": 16}, 4.0, 1.1386, 16),  # 64 positions over 16
        ({"factor": 4.0, "attention_factor": 0.9}, 4.0, 0.9, 64),
        ({"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0}, 4.0, 1.0, 64),
        ({"factor": 0.5}, 0.5, 1.0, 64),
    ],
)
def test_yarn_takes_its_defaults_from_paper_and_transformers(
    tmp_path: Path, changes: dict[str, Any], factor: float, attention_factor: float, original: int
) -> None:
    rope = read(tmp_path, rope_scaling={"rope_type": "yarn", **changes}).rope
    assert (rope.kind, rope.factor, rope.original_max_positions) == ("yarn", factor, original)
    assert rope.attention_factor == pytest.approx(attention_factor, abs=1e-4)
    assert (rope.beta_fast, rope.beta_slow, rope.truncate) == (32.0, 1.0, True)


@pytest.mark.parametrize("kind_key", ["rope_type", "type"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_rope_scaling_is_read_in_every_spelling(tmp_path: Path, kind_key: str, place: str) -> None:
    llama3 = read(tmp_path, **{place: {kind_key: "llama3", **LLAMA3_ROPE}}).rope
    assert llama3 == RopeSpec(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=32
    )
    linear = read(tmp_path, rope_theta=100000, **{place: {kind_key: "linear", "factor": 4}}).rope
    assert linear == RopeSpec(theta=100_000.0, kind="linear", factor=4.0)


def test_custom_code_is_ignored_when_the_family_is_known(tmp_path: Path) -> None:
    assert read(tmp_path, auto_map={"AutoModelForCausalLM": "modeling.Evil"}).family == "llama"


@pytest.mark.parametrize("key", REQUIRED_KEYS)
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    assert f"{key} is missing" in refusal(tmp_path, **{key: ...})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, ["model_type is 'gpt2'", "llama, mistral, qwen2, qwen3, smollm3"]),
        ({"quantization_config": {"quant_method": "mxfp4"}}, ["quantization_config.quant_method", "'mxfp4'", "AWQ"]),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}}, ["weight_block_size"]),
        ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, ["fmt is 'e5m2'", "e4m3"]),
        ({"hidden_act": "gelu"}, ["hidden_act is 'gelu'", "silu"]),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"]}, ["layer_types", "chunked_attention"]),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ["layer_types", "sliding_attention"]),
        ({"model_type": "qwen2", "num_key_value_heads": ...}, ["num_key_value_heads is missing"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads is 3", "divisor", "(4)"]),
        ({"hidden_size": 10}, ["hidden_size is 10", "multiple", "(4)"]),
        ({"head_dim": 3}, ["3 dimensions", "even"]),
        ({"hidden_size": 8.0}, ["hidden_size is 8.0", "whole number"]),
        ({"vocab_size": 0}, ["vocab_size is 0"]),
        ({"vocab_size": True}, ["vocab_size is True"]),
        ({"max_position_embeddings": 1}, ["max_position_embeddings is 1", "from 2"]),
        ({"model_type": "mistral", "sliding_window": 1}, ["sliding_window is 1", "from 2"]),
        ({"rms_norm_eps": "tiny"}, ["rms_norm_eps is 'tiny'"]),
        ({"attention_bias": 1}, ["attention_bias is 1", "true or false"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5"]),
        ({"rope_scaling": "linear"}, ["rope_scaling is 'linear'", "an object"]),
        ({"rope_scaling": {"type": "yarn", "factor": -4.0}}, ["rope_scaling.factor is -4.0"]),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, ["rope_scaling.rope_type is 'dynamic'"]),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            ["rope_parameters.short_factor is None", "a list of 1 positive numbers"],
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, ["rope_scaling.factor is missing"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["rope_scaling.low_freq_factor is missing"]),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE, "high_freq_factor": 1.0}},
            ["rope_scaling.high_freq_factor is 1.0", "greater than"],
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["rope_parameters.full_attention"]),
    ],
)
def test_an_unsupported_value_is_named(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    message = refusal(tmp_path, **changes)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "\xff\xfe", '{"model_type": "llama", }'])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_model_spec(tmp_path)


def test_an_absent_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_model_spec(tmp_path)


@pytest.mark.parametrize(
    ("config_ids", "generation", "stop_ids"),
    [
        (2, None, (2,)),
        (..., None, ()),
        (None, {}, ()),
        ([1, 2], {"eos_token_id": None}, (1, 2)),
        (2, {"eos_token_id": [7, 9]}, (7, 9)),
        (2, {"eos_token_id": 0}, (0,)),
    ],
)
def test_stop_ids_of_the_generation_config_come_first(
    tmp_path: Path, config_ids: object, generation: dict[str, Any] | None, stop_ids: tuple[int, ...]
) -> None:
    write_config(tmp_path, eos_token_id=config_ids)
    if generation is not None:
        write_json(tmp_path / "generation_config.json", generation)
    assert read_stop_ids(tmp_path) == stop_ids


@pytest.mark.parametrize("wrong", ["</s>", [1, None], -1, True, 2.0])
def test_stop_ids_that_are_no_ids_are_refused(tmp_path: Path, wrong: object) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id is "):
        read_stop_ids(write_config(tmp_path, eos_token_id=wrong))
