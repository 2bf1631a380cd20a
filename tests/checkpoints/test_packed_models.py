"""Checkpoints packed in 4 bits compute what the plain model of the same weights computes, in every family."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from forerun.backends.torch.backend import FUSED, REFERENCE, TorchBackend
from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.model.runner import Runner
from tests.checkpoints.packed import METHODS, write_packed
from tests.dense_reference import dense_logits
from tests.golden.families import FAMILIES, Golden
from tests.marks import in_turn

SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}  # multiples of a group of 32
NUM_TOKENS = 40
DENSE_FAMILIES = [name for name in FAMILIES if "yarn" not in name]  # which the dense reference has no rope for


def packed_folder(family: str, method: str, folder: Path, group_size: int) -> tuple[Golden, dict[str, Tensor]]:
    """A tiny checkpoint of a family, packed, and transformers' model with the same weights, plain."""
    golden = replace(FAMILIES[family], changes={**FAMILIES[family].changes, **SIZES}).save(folder)
    plain = load_file(folder / "model.safetensors")
    expected = write_packed(folder, plain, method, group_size=group_size)
    golden.model.load_state_dict({name: tensor.float() for name, tensor in expected.items()}, strict=False)
    golden.model.tie_weights()
    return golden, expected


def run(folder: Path, token_ids: list[int], dtype: torch.dtype, kernels: TorchBackend = REFERENCE) -> Tensor:
    """Logits [T, V] of every token."""
    source = HuggingFaceFolder(name="x", folder=folder)
    weights = source.weights(dtype=dtype)
    runner = Runner(source.spec(), weights, backend=kernels, capacity=64, dtype=dtype, device="cpu")
    return runner.extend(token_ids, num_logit_rows=len(token_ids))


def token_ids_of(seed: int) -> list[int]:
    return torch.randint(131, (NUM_TOKENS,), generator=torch.Generator().manual_seed(seed)).tolist()


def fused(plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the dense reference's names; queries, keys and values are one, and so are gates and ups."""
    names = {
        "model.embed_tokens": "embedding", "model.norm": "final_norm", "lm_head": "head", "model.layers": "layers",
        "self_attn.q_proj": "qkv", "self_attn.k_proj": "qkv", "self_attn.v_proj": "qkv", "mlp.gate_proj": "gate_up",
        "mlp.up_proj": "gate_up", "self_attn.o_proj": "attention_out", "mlp.down_proj": "mlp_out",
        "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm", "input_layernorm": "attention_norm",
        "post_attention_layernorm": "mlp_norm",
    }  # fmt: skip
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in plain.items():
        own = name
        for theirs, ours in names.items():
            own = own.replace(theirs, ours)
        parts.setdefault(own, {})[name] = tensor
    order = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
    return {
        own: torch.cat([found[name] for name in sorted(found, key=lambda name: place(name, order))])
        for own, found in parts.items()
    }


def place(name: str, order: tuple[str, ...]) -> int:
    return next((number for number, part in enumerate(order) if part in name), 0)


@pytest.mark.parametrize(("family", "method"), in_turn(list(FAMILIES), METHODS))
def test_logits_are_those_of_transformers_with_plain_weights(family: str, method: str, tmp_path: Path) -> None:
    golden, _ = packed_folder(family, method, tmp_path, group_size=32)
    token_ids = token_ids_of(seed=1)
    with torch.inference_mode():
        expected = golden.model(torch.tensor([token_ids])).logits[0]
    assert expected.std() > 0.5, "the logits are too flat to tell models apart"
    assert (run(tmp_path, token_ids, torch.float32) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("shape", "method"),
    in_turn([*((family, 32) for family in DENSE_FAMILIES), ("llama_biased", -1), ("qwen3", -1)], METHODS),
)
def test_in_float64_they_are_those_of_the_dense_reference(shape: tuple[str, int], method: str, tmp_path: Path) -> None:
    family, group_size = shape
    _, plain = packed_folder(family, method, tmp_path, group_size)
    token_ids = token_ids_of(seed=2)
    expected = dense_logits(HuggingFaceFolder(name="x", folder=tmp_path).spec(), fused(plain), token_ids)
    for kernels in (REFERENCE, FUSED):
        assert (run(tmp_path, token_ids, torch.float64, kernels) - expected).abs().max() <= 1e-10, kernels.name
