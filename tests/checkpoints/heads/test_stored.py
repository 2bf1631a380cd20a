"""Published heads of every trainer are read for what they are, and what is not known is refused by name."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from forerun.checkpoints.heads.stored import StoredHead, find_head
from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError, VocabularyError
from forerun.core.head_spec import EagleSpec
from tests.drafting.heads.published import (
    block_config,
    flat_config,
    nested_config,
    with_map,
    write_block,
    write_eagle,
    write_files,
)
from tests.drafting.heads.random_heads import block_tensors, eagle_tensors, random_block, random_eagle
from tests.tiny import plain_spec

TARGET = plain_spec(num_layers=6, vocab_size=60)
SEEDS = range(8)


def opened(folder: Path) -> StoredHead:
    stored = find_head(open_source(str(folder)))
    assert stored is not None, "a head is recognised"
    return stored


def random_case(seed: int, **changes: Any) -> tuple[EagleSpec, dict[str, Tensor], Tensor]:
    """A head, its weights, and the tokens that it drafts."""
    rng = random.Random(seed)
    spec = random_eagle(rng, TARGET, **changes)
    ids = torch.tensor(sorted(rng.sample(range(TARGET.vocab_size), spec.body.vocab_size)))
    return spec, eagle_tensors(spec, TARGET, seed), ids


def require_equal(stored: StoredHead, weights: dict[str, Tensor], ids: Tensor | None) -> None:
    read = stored.weights(dtype=torch.float64, device="cpu")
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    target_ids = stored.target_ids()
    assert target_ids is None if ids is None else target_ids is not None and torch.equal(target_ids, ids)
    stored.require_fit(TARGET, "the target")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dialect", ["flat", "speculators"])
def test_eagle3_folders_are_read(seed: int, dialect: str, tmp_path: Path) -> None:
    is_flat = dialect == "flat"
    spec, weights, ids = random_case(seed, **({"norms_state": False} if is_flat else {"norms_logits": True}))
    named, config = with_map(weights, ids, TARGET.vocab_size), nested_config(spec, TARGET)
    if is_flat:
        named = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in named.items()}
        config = flat_config(spec, TARGET)
    stored = opened(write_files(tmp_path / "head", config, named))
    assert stored.spec == replace(spec, body=replace(spec.body, num_layers=spec.body.num_layers))
    assert stored.verifier == ("" if is_flat else "some/target")
    require_equal(stored, weights, ids)


def test_the_usual_layers_are_those_of_eagle() -> None:
    spec, _, _ = random_case(0, layer_ids=None, num_taps=3)
    assert spec.taps(32) == (1, 15, 28)


@pytest.mark.parametrize("seed", SEEDS)
def test_dflash_folders_are_read(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    spec = random_block(rng, TARGET)
    window, is_causal = rng.choice([None, 3]), rng.random() < 0.5
    num_layers = spec.body.num_layers
    spec = replace(spec, windows=(window,) * num_layers, is_causal=(is_causal,) * num_layers)
    stored = opened(write_block(tmp_path / "head", spec, TARGET, seed=seed))
    assert stored.spec == spec
    expected = {name: value.float().double() for name, value in block_tensors(spec, TARGET, seed).items()}
    require_equal(stored, expected, None)


def test_speculators_counts_the_layer_that_a_dflash_feature_enters(tmp_path: Path) -> None:
    spec = random_block(random.Random(1), TARGET, layer_ids=(1, 4), conv_kernel=0, pair_rank=0)
    spec = replace(spec, windows=(None,) * spec.body.num_layers, is_causal=(False,) * spec.body.num_layers)
    config = block_config(spec, TARGET)
    nested = {
        "speculators_model_type": "dflash",
        "transformer_layer_config": config,
        "block_size": spec.block_size,
        "mask_token_id": spec.mask_token_id,
        "aux_hidden_state_layer_ids": [2, 5],
        "target_hidden_size": spec.target_hidden_size,
    }
    tensors = block_tensors(spec, TARGET, 1)
    found = opened(write_files(tmp_path / "head", nested, tensors)).spec
    assert found.taps(TARGET.num_layers) == (1, 4)


def test_whole_models_are_no_heads() -> None:
    assert find_head(open_source("builtin")) is None
    assert find_head(open_source("builtin-draft")) is None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    spec, _, _ = random_case(3)
    return write_eagle(tmp_path / "head", replace(spec, body=replace(spec.body, vocab_size=20)), TARGET)


def edited(folder: Path, edit: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> Path:
    config, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    edit(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda config, tensors: tensors.update(mask_hidden=torch.zeros(1, 1, 3)), "mask_hidden"),
        (lambda config, tensors: tensors.pop("norm.weight"), "lacks tensor 'norm.weight'"),
        (lambda config, tensors: tensors.pop("fc.weight"), "fc.weight"),
        (lambda config, tensors: tensors.update({"norm.weight": torch.zeros(3)}), "'norm.weight' has shape"),
        (lambda config, tensors: config.update(eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state"),
        (lambda config, tensors: config.update(speculators_model_type="dspark"), "speculators_model_type"),
        (lambda config, tensors: config.update(hidden_act="gelu"), "hidden_act"),
        (lambda config, tensors: config.update(target_hidden_size=7), "target_hidden_size"),
    ],
)
def test_what_forerun_does_not_compute_is_refused_by_name(
    edit: Callable[[dict[str, Any], dict[str, Tensor]], object], message: str, folder: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(edited(folder, edit))


def test_a_damaged_map_is_refused(folder: Path) -> None:
    edited(folder, lambda _, tensors: tensors.update(d2t=torch.full((20,), -5)))
    with pytest.raises(CheckpointError, match="ascending"):
        opened(folder).target_ids()


def test_heads_of_other_targets_are_refused(folder: Path) -> None:
    stored = opened(folder)
    with pytest.raises(CheckpointError, match="features of size"):
        stored.require_fit(replace(TARGET, hidden_size=24), "other")
    with pytest.raises(CheckpointError, match="has 1 layers"):
        stored.require_fit(replace(TARGET, num_layers=1), "other")
    with pytest.raises(VocabularyError, match="drafts token 57, but other has only 30"):
        stored.require_fit(replace(TARGET, vocab_size=30), "other")
    edited(folder, lambda _, tensors: tensors.pop("embed_tokens.weight"))
    if stored.spec.body.hidden_size != TARGET.hidden_size:
        with pytest.raises(CheckpointError, match="lacks an embedding"):
            opened(folder).require_fit(TARGET, "other")


def paired(weight: Tensor, head_dim: int) -> Tensor:
    """Rows in llama.cpp's order of rotated dimensions."""
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def test_a_gguf_file_of_llama_cpp_is_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    rng = random.Random(5)
    body = random_case(5)[0].body
    body = replace(body, num_layers=1, vocab_size=20, qkv_bias=False, qk_norm=False)
    spec = random_eagle(rng, TARGET, body=body, layer_ids=(2, 3, 4), num_taps=3, norms_each=False, norms_all=True,
                        norms_logits=True, norms_state=False)  # fmt: skip
    weights, ids = eagle_tensors(spec, TARGET, 5), torch.arange(20) * 3
    path = tmp_path / "head.gguf"
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(body.max_positions)
    writer.add_embedding_length(body.hidden_size)
    writer.add_feed_forward_length(body.intermediate_size)
    writer.add_head_count(body.num_heads)
    writer.add_head_count_kv(body.num_kv_heads)
    writer.add_key_length(body.head_dim)
    writer.add_rope_freq_base(body.rope.theta)
    writer.add_layer_norm_rms_eps(body.norm_eps)
    writer.add_array("eagle3.target_layers", list(spec.layer_ids or ()))
    writer.add_uint32("eagle3.target_hidden_size", spec.target_hidden_size)
    writer.add_bool("eagle3.norm_before_residual", spec.norms_residual)
    names = {
        "fc.weight": "fc.weight", "input_norm.weight": "enc.output_norm.weight", "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight", "embed_tokens.weight": "token_embd.weight",
        "layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
        "layers.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
        "layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        **{f"layers.0.self_attn.{name}_proj.weight": f"blk.0.attn_{name}.weight" for name in "qkv"},
        "layers.0.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        **{f"layers.0.mlp.{name}_proj.weight": f"blk.0.ffn_{name}.weight" for name in ("gate", "up", "down")},
    }  # fmt: skip
    for name, tensor in weights.items():
        is_rotated = "q_proj" in name or "k_proj" in name
        written = paired(tensor, body.head_dim) if is_rotated else tensor
        writer.add_tensor(names[name], written.float().numpy())
    writer.add_tensor("d2t", ids.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = opened(path)
    assert isinstance(stored.spec, EagleSpec)
    assert stored.spec == replace(spec, body=replace(spec.body, norm_eps=stored.spec.body.norm_eps))
    require_equal(stored, {name: tensor.float().double() for name, tensor in weights.items()}, ids)
