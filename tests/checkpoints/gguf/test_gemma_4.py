"""The keys and tensors of Gemma 4's GGUF files: an E2B's, a 31B's, and what is refused."""

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from forerun.checkpoints.gguf.checkpoint import read_stop_ids
from forerun.checkpoints.gguf.config import read_model_spec
from forerun.checkpoints.gguf.header import GgufFile
from forerun.checkpoints.gguf.names import gguf_plan
from forerun.checkpoints.gguf.tokenizer import read_tokenizer
from forerun.checkpoints.gguf.weights import match_tensors
from forerun.checkpoints.safetensors.header import StoredTensor
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec, RopeSpec

E2B_SLIDES = tuple((layer + 1) % 5 > 0 for layer in range(35))
E2B: dict[str, Any] = {
    "block_count": 35, "context_length": 131_072, "embedding_length": 1536, "attention.head_count": 8,
    "attention.head_count_kv": 1, "attention.key_length": 512, "attention.value_length": 512,
    "attention.key_length_swa": 256, "attention.value_length_swa": 256, "attention.shared_kv_layers": 20,
    "attention.sliding_window": 512, "attention.sliding_window_pattern": E2B_SLIDES,
    "attention.layer_norm_rms_epsilon": 1e-6, "embedding_length_per_layer_input": 256,
    "feed_forward_length": (6144,) * 15 + (12_288,) * 20, "final_logit_softcapping": 30.0, "rope.freq_base": 1e6,
    "rope.freq_base_swa": 1e4, "rope.dimension_count": 512, "rope.dimension_count_swa": 256,
}  # fmt: skip
SLIDES_31B = tuple((layer + 1) % 6 > 0 for layer in range(60))
LARGEST: dict[str, Any] = {
    **E2B, "block_count": 60, "embedding_length": 5376, "attention.head_count": 32, "attention.shared_kv_layers": 0,
    "attention.head_count_kv": tuple(16 if slides else 4 for slides in SLIDES_31B), "attention.sliding_window": 1024,
    "attention.sliding_window_pattern": SLIDES_31B, "feed_forward_length": 21_504,
    "embedding_length_per_layer_input": 0,
}  # fmt: skip


def stored(folder: Path, name: str, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(path=folder / "model.gguf", name=name, dtype="F32", shape=shape, offset=0, num_bytes=1024)


def file_of(folder: Path, keys: dict[str, Any], *, has_divisors: bool = True) -> GgufFile:
    """A file with these keys, its embedding, and the divisors of which a quarter turns."""
    path = folder / "model.gguf"
    path.write_bytes(pack("<256f", *([1.0] * 64 + [1e30] * 192)))
    tokens = (*(f"<{id_}>" for id_ in range(7)), "<turn|>")
    metadata = {f"gemma4.{key}": value for key, value in keys.items() if value is not None}
    metadata |= {"general.architecture": "gemma4", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.eos_token_id": 1}
    names = {"token_embd.weight": (262_144, keys["embedding_length"])}
    names |= {"rope_freqs.weight": (256,)} if has_divisors else {}
    tensors = {name: stored(folder, name, shape) for name, shape in names.items()}
    return GgufFile(path=path, metadata=metadata, tensors=tensors)


def spec_of(folder: Path, keys: dict[str, Any], **changes: Any) -> ModelSpec:
    return read_model_spec(file_of(folder, keys | changes))


def test_an_e2b_shares_keys_and_has_embeddings_for_each_layer(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, E2B)
    assert (spec.head_dim, spec.full_head_dim, spec.num_kv_heads, spec.full_num_kv_heads) == (256, 512, 1, 1)
    assert (spec.num_borrowing_layers, spec.has_wide_borrowers, spec.layer_input_size) == (20, True, 256)
    assert (spec.of_layer(14).intermediate_size, spec.of_layer(15).intermediate_size) == (6144, 12_288)
    assert (spec.cached_layer(34), spec.cached_layer(33), spec.logit_cap, spec.window) == (14, 13, 30.0, 512)
    assert spec.rope == RopeSpec(theta=1e6, kind="proportional", rotated_dims=128)
    assert spec.sliding_rope == RopeSpec(theta=1e4)
    assert spec.num_parameters == pytest.approx(4.65e9, rel=0.01)


def test_a_31b_has_other_key_heads_in_full_layers(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, LARGEST)
    assert (spec.num_kv_heads, spec.full_num_kv_heads, spec.num_borrowing_layers) == (16, 4, 0)
    assert (spec.intermediate_size, spec.has_wide_borrowers, spec.layer_input_size) == (21_504, False, 0)
    assert len(spec.sliding_layers) == 50


def test_the_tensors_of_layers_that_share_are_those_of_queries_alone(tmp_path: Path) -> None:
    """The converter keeps keys that no layer uses; values may be the keys' projection."""
    file = file_of(tmp_path, E2B)
    spec = read_model_spec(file)
    tensors = {name: stored(tmp_path, name, place.shape) for name, place in gguf_plan(spec).items()}
    assert "blk.14.attn_k.weight" in tensors
    assert "blk.15.attn_k.weight" not in tensors
    del tensors["blk.4.attn_v.weight"]
    unused = {name: stored(tmp_path, name, (1, 1)) for name in ("blk.15.attn_k.weight", "blk.34.attn_k_norm.weight")}
    whole = GgufFile(path=file.path, metadata=file.metadata, tensors={**file.tensors, **tensors, **unused})
    matched = match_tensors(whole, spec)
    names = [tensor.name for tensor in matched["layers.4.qkv.weight"]]
    assert names[1:] == ["blk.4.attn_k.weight", "blk.4.attn_v.weight"]
    assert len(matched["layers.34.qkv.weight"]) == 1
    assert {"layer_table.weight", "layer_inputs.weight", "layers.3.layer_scale.weight"} <= set(matched)


def test_the_end_of_a_turn_ends_a_text(tmp_path: Path) -> None:
    assert read_stop_ids(file_of(tmp_path, E2B)) == (1, 7)


def vocabulary(tokens: tuple[str, ...], types: tuple[int, ...]) -> GgufFile:
    """A vocabulary as in an E2B's file, in which only <turn|> is named as an end."""
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": (0.0,) * len(tokens), "tokenizer.ggml.merges": (), "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip
    return GgufFile(path=Path("model.gguf"), metadata=metadata, tensors={})


def test_the_end_of_a_text_ends_it_though_its_type_is_that_of_text() -> None:
    file = vocabulary(("<pad>", "<eos>", "<bos>", "<turn|>", "a", "b"), (3, 1, 3, 3, 1, 1))
    tokenizer = read_tokenizer(file)
    assert set(read_stop_ids(file)) == {1, 3}
    assert tokenizer.encode("<eos>") == [1]
    assert tokenizer.decode([4, 1]) == "a"


def test_an_ordinary_token_may_be_listed_twice_and_both_ids_are_its_text() -> None:
    tokenizer = read_tokenizer(vocabulary(("<pad>", "<eos>", "<bos>", "<turn|>", "#", "b", "#"), (3, 1, 3, 3, 1, 1, 1)))
    assert tokenizer.encode("b#") == [5, 6]
    assert tokenizer.decode([5, 4, 6]) == "b##"
    assert tokenizer.bytes_of(4) == b"#"
    assert not tokenizer.is_silent(4)
    with pytest.raises(CheckpointError, match=r"lists '<turn\|>' twice, as ids 3 and 4"):
        read_tokenizer(vocabulary(("<pad>", "<eos>", "<bos>", "<turn|>", "<turn|>"), (3, 1, 3, 3, 1)))


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("attention.sliding_window_pattern", (True, False), "a list of 35 values, one for each layer"),
        ("attention.sliding_window_pattern", (True,) * 35, "such that a layer of each kind|without one|in those"),
        ("attention.head_count_kv", (1,) * 34 + (2,), "one value in all layers with a window"),
        ("attention.head_count_kv", tuple(1 if slides else 3 for slides in E2B_SLIDES), "divisors of attention.head"),
        ("feed_forward_length", (6144,) * 14 + (7000,) * 21, "twice as much in layers that share keys"),
        ("attention.value_length", 256, "the 512 dimensions of a head"),
        ("rope.dimension_count", 128, "of shape|the 512 dimensions of a head"),
        ("rope.dimension_count_swa", 128, "the 256 dimensions of a head"),
        ("attention.shared_kv_layers", 35, "a whole number from 0 to 34"),
        ("expert_count", 128, "the only supported value"),
        ("attention.unheard_of", 1, "forerun does not know its effect"),
    ],
)  # fmt: skip
def test_keys_of_other_models_are_refused(key: str, value: object, fault: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=fault):
        spec_of(tmp_path, E2B, **{key: value})


def test_a_file_without_divisors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks tensor 'rope_freqs.weight'"):
        read_model_spec(file_of(tmp_path, E2B, has_divisors=False))
