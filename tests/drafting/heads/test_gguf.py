"""Heads in GGUF files, as llama.cpp writes them."""

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forerun.checkpoints.open import open_source
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec
from forerun.drafting.heads.dflash import DFlashSpec
from forerun.drafting.heads.eagle import EagleSpec
from forerun.drafting.heads.kind import HeadSpec, StoredHead
from forerun.drafting.heads.stored import find_head
from tests.drafting.heads.random_heads import dflash_tensors, eagle_tensors, random_body, random_dflash, random_eagle
from tests.tiny import plain_spec

gguf = pytest.importorskip("gguf")
from tests.golden.gguf_writer import add_sizes  # noqa: E402 - it imports gguf

TARGET = plain_spec(num_layers=6, vocab_size=60)
NAMES = {
    "fc.weight": "fc.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight", "d2t": "d2t",
    "input_norm.weight": "enc.output_norm.weight", "hidden_norm.weight": "enc.output_norm.weight",
    "candidate_selector.hidden_projection.weight": "selector_hidden.weight",
    "candidate_selector.predecessor_codebook": "selector_predecessor.weight",
    "candidate_selector.successor_codebook": "selector_successor.weight",
}  # fmt: skip
IN_LAYERS = {
    "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output", "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection": "attn_conv_proj", "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
    **{f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    **{f"self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"},
    **{f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
}  # fmt: skip


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, number, module = name.split(".", 2)
    part = next(part for part in IN_LAYERS if module.startswith(part))
    return f"blk.{number}.{IN_LAYERS[part]}{module.removeprefix(part)}"


def paired(weight: Tensor, head_dim: int) -> Tensor:
    """Rows in llama.cpp's order of rotated dimensions."""
    halves = weight.view(-1, 2, head_dim // 2, weight.shape[1])
    return halves.transpose(1, 2).reshape(weight.shape)


def write(
    path: Path, architecture: str, body: ModelSpec, keys: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Path:
    """A file of a head; keys without a dot stand under its architecture."""
    with closing(gguf.GGUFWriter(path, architecture)) as writer:
        add_sizes(writer, body)
        writer.add_rope_freq_base(body.rope.theta)
        writer.add_layer_norm_rms_eps(body.norm_eps)
        for key, value in keys.items():
            add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
            add[type(value)](key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor.numpy() if tensor.dtype == torch.int64 else tensor.float().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    return path


def opened(path: Path) -> StoredHead:
    stored = find_head(open_source(str(path)))
    assert stored is not None, "a head is recognised"
    return stored


def require_equal(stored: StoredHead, spec: HeadSpec, weights: Mapping[str, Tensor]) -> None:
    body = replace(spec.body, norm_eps=stored.spec.body.norm_eps)  # a float32
    assert stored.spec == replace(spec, body=body)
    read = stored.weights(dtype=torch.float64, device="cpu")
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name].float().double()) for name in weights)
    stored.require_fit(TARGET, "the target")


def test_an_eagle3_file_is_read(tmp_path: Path) -> None:
    rng = random.Random(5)
    body = random_body(rng, num_layers=1, vocab_size=20, qkv_bias=False, qk_norm=False)
    spec = random_eagle(rng, TARGET, body=body, layer_ids=(2, 3, 4), num_taps=3, norms_each=False, norms_all=True,
                        norms_logits=True, norms_state=False)  # fmt: skip
    weights = eagle_tensors(spec, TARGET, 5)
    ids = torch.arange(20) * 3
    named = {
        gguf_name(name): paired(tensor, body.head_dim) if "q_proj" in name or "k_proj" in name else tensor
        for name, tensor in weights.items()
    }
    keys = {"target_layers": [2, 3, 4], "target_hidden_size": 20, "norm_before_residual": spec.norms_residual}
    stored = opened(write(tmp_path / "head.gguf", "eagle3", body, keys, {**named, "d2t": ids}))
    assert isinstance(stored.spec, EagleSpec)
    require_equal(stored, spec, weights)
    target_ids = stored.target_ids()
    assert target_ids is not None
    assert torch.equal(target_ids, ids)


def random_file(path: Path, seed: int, **changes: Any) -> tuple[Path, DFlashSpec, dict[str, Tensor]]:
    """A DFlash head whose config GGUF can say, and its weights."""
    rng = random.Random(seed)
    spec = random_dflash(rng, TARGET, markov_rank=0, **changes)
    num_layers = spec.body.num_layers
    has_pairs = spec.pair_rank > 0
    is_causal = rng.random() < 0.5
    windows = tuple(rng.choice([None, 8]) for _ in range(num_layers)) if rng.random() < 0.7 else (None,) * num_layers
    spec = replace(spec, windows=windows, is_causal=(is_causal,) * num_layers)
    keys: dict[str, Any] = {
        "block_size": spec.block_size,
        "target_layers": [layer + 1 for layer in spec.layer_ids],  # llama.cpp counts the layer that reads it
        "tokenizer.ggml.mask_token_id": spec.mask_token_id,
        **({"sample_from_anchor": True} if spec.drafts_from_root else {}),
        **({"attention.causal": is_causal} if is_causal or rng.random() < 0.5 else {}),
    }
    if spec.logit_cap:
        keys |= {"embedding_scale": 1.5, "logit_scale": 0.75, "final_logit_softcapping": 3.0}
    if any(windows):
        keys |= {"attention.sliding_window": 8, "attention.sliding_window_pattern": [bool(one) for one in windows]}
    if has_pairs:
        keys |= {"selector_rank": spec.pair_rank, "selector_top_k": spec.num_pairs}
        keys |= {"conv_kernel_size": spec.conv_kernel, "conv_group_size": spec.conv_group}
    weights = dflash_tensors(spec, TARGET, seed)
    write(path, "dflash", spec.body, keys, {gguf_name(name): tensor for name, tensor in weights.items()})
    return path, spec, weights


@pytest.mark.parametrize("seed", range(8))
def test_dflash_files_are_read(seed: int, tmp_path: Path) -> None:
    path, spec, weights = random_file(tmp_path / "head.gguf", seed)
    stored = opened(path)
    require_equal(stored, spec, weights)
    assert stored.target_ids() is None


Edit = Callable[[dict[str, Any], dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda keys, tensors: tensors.update({"markov_w1.weight": torch.zeros(60, 4)}), "'markov_w1.weight'"),
        (lambda keys, tensors: tensors.update({"blk.0.attn_sinks.weight": torch.zeros(3)}), "'blk.0.attn_sinks.weight"),
        (lambda keys, tensors: tensors.pop("enc.output_norm.weight"), "hidden_norm.weight"),
        (lambda keys, tensors: tensors.pop("fc.weight"), "fc.weight"),
        (lambda keys, tensors: keys.pop("target_layers"), "target_layers"),
        (lambda keys, tensors: keys.update(target_layers=[0, 3]), "target_layers"),
        (lambda keys, tensors: keys.pop("tokenizer.ggml.mask_token_id"), "mask_token_id"),
        (lambda keys, tensors: keys.update({"attention.sliding_window": 8}), "sliding_window_pattern"),
    ],
)
def test_what_is_missing_or_not_computed_is_refused_by_name(edit: Edit, message: str, tmp_path: Path) -> None:
    spec = random_dflash(random.Random(1), TARGET, conv_kernel=0, pair_rank=0, markov_rank=0)
    keys = {
        "block_size": 4,
        "target_layers": [layer + 1 for layer in spec.layer_ids],
        "tokenizer.ggml.mask_token_id": 3,
    }
    tensors = {gguf_name(name): tensor for name, tensor in dflash_tensors(spec, TARGET, 1).items()}
    edit(keys, tensors)
    path = write(tmp_path / "head.gguf", "dflash", spec.body, keys, tensors)
    with pytest.raises(CheckpointError, match=message):
        opened(path)
