"""What a GGUF file's metadata say of a model, and what is refused because it would be computed differently."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from forerun.checkpoints.gguf.checkpoint import GgufCheckpoint
from forerun.cli.model_sheet import ELEMENT_BYTES, read_sheet
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.errors import CheckpointError
from forerun.engine.model_loading import Checkpoint
from tests.checkpoints.gguf.models import OF_ARCHITECTURE, write_model


def opened(path: Path, **changes: Any) -> GgufCheckpoint:
    return GgufCheckpoint(name="x", path=write_model(path / "x.gguf", **changes))


@pytest.mark.parametrize("architecture", OF_ARCHITECTURE)
def test_a_model_is_described_by_its_keys(architecture: str, tmp_path: Path) -> None:
    spec = opened(tmp_path, architecture=architecture, ARCH__rope__freq_base=5e5).spec()
    assert (spec.family, spec.num_layers, spec.hidden_size, spec.intermediate_size) == (architecture, 1, 256, 512)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (4, 2, 64, 40)
    assert (spec.max_positions, spec.window, spec.rope.theta, spec.tied_embeddings) == (128, None, 5e5, True)
    assert (spec.qkv_bias, spec.qk_norm) == (architecture == "qwen2", architecture == "qwen3")


def test_a_window_is_read_and_keys_without_effect_are_let_be(tmp_path: Path) -> None:
    spec = opened(tmp_path, ARCH__attention__sliding_window=96, ARCH__expert_count=0, ARCH__vocab_size=32).spec()
    assert (spec.window, spec.max_positions, len(spec.sliding_layers)) == (96, 128, spec.num_layers)


def test_scalings_of_positions_are_read(tmp_path: Path) -> None:
    linear = opened(tmp_path, ARCH__rope__scale_linear=4.0).spec().rope
    assert (linear.kind, linear.factor) == ("linear", 4.0)
    keys: dict[str, Any] = {"ARCH__rope__scaling__factor": 4.0, "ARCH__rope__scaling__original_context_length": 32}
    yarn = opened(tmp_path, ARCH__rope__scaling__type="yarn", **keys).spec().rope
    assert (yarn.kind, yarn.factor, yarn.original_max_positions) == ("yarn", 4.0, 32)
    assert yarn.attention_factor == pytest.approx(1.1386294)


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"ARCH__expert_count": 8}, "llama.expert_count is 8, but must be 0"),
        ({"ARCH__rope__scaling__type": "longrope"}, "llama.rope.scaling.type is 'longrope', but must be one of none"),
        ({"ARCH__rope__dimension_count": 32}, "llama.rope.dimension_count is 32, but must be the 64"),
        ({"ARCH__attention__value_length": 32}, "llama.attention.value_length is 32"),
        ({"ARCH__attention__scale": 0.5}, "llama.attention.scale is 0.5"),
        ({"ARCH__attention__layer_norm_epsilon": 0.5}, "llama.attention.layer_norm_epsilon is 0.5, but must be absent"),
        ({"ARCH__attention__layer_norm_rms_epsilon": None}, "attention.layer_norm_rms_epsilon is missing"),
        ({"ARCH__attention__head_count": [4, 4]}, "attention.head_count is (4, 4), but must be a whole number"),
        ({"ARCH__attention__head_count_kv": 3}, "attention.head_count_kv is 3, but must be a divisor"),
        ({"ARCH__attention__key_length": 63}, "attention.key_length is 63, but must be an even number"),
        ({"ARCH__logit_scale": 2.0}, "llama.logit_scale is 2.0, but must be absent"),
        ({"ARCH__block_count": 10**6}, "llama.block_count is 1000000, but must be a whole number from 1 to 1024"),
        ({"ARCH__context_length": None}, "llama.context_length is missing"),
        ({"general__type": "adapter"}, "general.type is 'adapter', but must be 'model'"),
        ({"tokenizer__ggml__tokens": ["a"] * 41}, "names 41 tokens, but token_embd.weight has 40 rows"),
        ({"tokenizer__ggml__tokens": 7}, "names 1 tokens"),
        ({"shapes": {"token_embd.weight": None}}, "lacks the matrix token_embd.weight"),
        ({"shapes": {"rope_freqs.weight": (16,)}}, "'rope_freqs.weight' is F32 of shape [16], but must be F32 of"),
    ],
)
def test_what_would_be_computed_differently_is_refused_by_name(
    changes: dict[str, Any], seen: str, tmp_path: Path
) -> None:
    source = opened(tmp_path, **changes)
    with pytest.raises(CheckpointError) as caught:
        source.spec()
    assert seen in str(caught.value)
    assert str(source.path) in str(caught.value)


def test_other_architectures_are_refused_with_the_list(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"architecture is 'mamba', but must be one of llama, qwen2, qwen3"):
        GgufCheckpoint(name="x", path=path).spec()


def test_all_ends_of_a_text_are_stops(tmp_path: Path) -> None:
    source = opened(tmp_path, tokenizer__ggml__eos_token_id=5, tokenizer__ggml__eot_token_id=7)
    assert source.stop_ids() == (5, 7, 0, 2), "then <|endoftext|> and <|im_end|>, known by their texts"
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.eom_token_id is 'x'"):
        opened(tmp_path, tokenizer__ggml__eom_token_id="x").stop_ids()


def test_recommended_sampling_is_taken_and_that_of_llama_cpp_without_any(tmp_path: Path) -> None:
    usual = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)
    assert opened(tmp_path).default_sampling() == usual
    greedy = opened(tmp_path, general__sampling__temp=0.0, general__sampling__top_k=40)
    assert greedy.default_sampling().is_greedy
    keys: dict[str, Any] = {"general__sampling__temp": 0.5, "general__sampling__top_k": 20}
    sampling = opened(tmp_path, **keys, general__sampling__penalty_repeat=1.25).default_sampling()
    assert (sampling.temperature, sampling.top_k, sampling.repetition_penalty) == (0.5, 20, 1.25)


@pytest.mark.parametrize(
    ("default_type", "dtype"), [("F32", "float32"), ("F16", "float16"), ("BF16", "bfloat16"), ("Q4_0", "bfloat16")]
)
def test_the_dtype_is_that_of_most_bytes_and_bfloat16_for_codes(default_type: str, dtype: str, tmp_path: Path) -> None:
    assert opened(tmp_path, default_type=default_type).stored_dtype() == dtype


def test_codes_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    source = opened(tmp_path, default_type="Q4_K", types={"token_embd": "F16"})
    sheet = read_sheet(source)
    num_codes = 256 * (256 + 128 + 128 + 256 + 512 + 512 + 512) // 256 * 144
    num_half = 2 * 40 * 256
    assert sheet.stored_formats == {"Q4_K": num_codes, "F16": num_half, "F32": 3 * 256 * 4}
    assert sheet.weights_bytes == num_codes + ELEMENT_BYTES[str(sheet.dtype)] * (40 * 256 + 3 * 256)
    assert sheet.files == (("x.gguf", source.path.stat().st_size),)
    checkpoint = Checkpoint.open(source, EngineConfig(target="x"))
    assert 144 * 256 < checkpoint.weight_bytes((256, 256)) < 0.6 * 256 * 256, "a little more than Q4_K alone"
    assert not Checkpoint.open(source, EngineConfig(target="x", weights="int8")).has_codes


def write_parts(path: Path, names: Iterable[str]) -> None:
    """Two parts of a model of architecture llama, the second with the embedding alone."""
    shapes = dict.fromkeys(names, None)
    count: dict[str, Any] = {"split__count": 2, "split__tensors__count": 11}
    write_model(path / "m-00001-of-00002.gguf", shapes={"token_embd.weight": None, **shapes}, split__no=0, **count)
    writer = gguf.GGUFWriter(path / "m-00002-of-00002.gguf", "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 2)
    writer.add_tensor("token_embd.weight", np.ones((40, 256), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_model_in_parts_is_one(tmp_path: Path) -> None:
    write_parts(tmp_path, ())
    source = GgufCheckpoint(name="x", path=tmp_path / "m-00001-of-00002.gguf")
    assert source.spec().vocab_size == 40
    assert len(source.identity()) == 16


def test_parts_are_asked_for_by_their_names(tmp_path: Path) -> None:
    write_parts(tmp_path, ())
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    renamed = first.rename(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match=r"one of 2 parts of a model: give the first .* in -00001-of-00002\.gguf"):
        GgufCheckpoint(name="x", path=renamed).spec()
    renamed.rename(first)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf is missing: fetch every part"):
        GgufCheckpoint(name="x", path=first).spec()


def test_a_part_is_known_by_its_own_keys(tmp_path: Path) -> None:
    write_parts(tmp_path, ())
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    with pytest.raises(
        CheckpointError, match=r"m-00001-of-00002\.gguf is part 2 of 2 by its own keys, but part 1 of 2"
    ):
        GgufCheckpoint(name="x", path=first).spec()


def test_parts_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    write_parts(tmp_path, ["blk.0.ffn_up.weight"])
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count is 11, but must be 10, the number in its parts"):
        GgufCheckpoint(name="x", path=tmp_path / "m-00001-of-00002.gguf").spec()


def test_what_runs_is_called_by_its_stored_types_and_the_dtype_it_is_computed_in(tmp_path: Path) -> None:
    source = opened(tmp_path, types={"token_embd": "Q8_0"}, default_type="Q4_K")
    names = [Checkpoint.open(source, config).dtype_name for config in (EngineConfig(), EngineConfig(weights="int8"))]
    assert names == ["Q4_K+Q8_0 (bfloat16)", "int8"]
