"""A layer is packed so that its products change by rounding alone, and by less than without looking at its inputs."""

import random

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.core.model_spec import ModelSpec
from forerun.model.quantise import dequantise
from forerun_lab.awq.folder import stored_tensors
from forerun_lab.awq.layer import LayerPacker, best_clips, best_scales, to_groups
from forerun_lab.awq.layer_inputs import LayerInputs, read_window
from tests.checkpoints.packed import dequantised
from tests.dense_reference import dense_logits
from tests.tiny import Weights, plain_spec, random_weights, tiny_runner

NUM_TOKENS = 48
GROUP_SIZE = 32
SPECS = [
    {"qkv_bias": True, "qk_norm": False, "mlp_bias": True, "out_bias": True},
    {"qkv_bias": False, "qk_norm": True, "tied_embeddings": True},
    {"num_kv_heads": 4, "qkv_bias": True},  # as many as query heads
]


def spec_of(changes: dict[str, object]) -> ModelSpec:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    return plain_spec(**{**sizes, **changes})


def packer_of(spec: ModelSpec, seed: int) -> tuple[LayerPacker, Weights, list[int]]:
    """A packer for random weights of unequal norms; these weights in float32; the text that was read."""
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(spec, generator)
    for name, weight in weights.items():
        if name.endswith(("attention_norm.weight", "mlp_norm.weight")):
            weight *= torch.rand(len(weight), generator=generator, dtype=torch.float64).mul(4.0).exp()
    token_ids = [random.Random(seed).randrange(spec.vocab_size) for _ in range(NUM_TOKENS)]
    inputs = LayerInputs(NUM_TOKENS)
    read_window(tiny_runner(spec, weights, backend=REFERENCE), token_ids, inputs.observe)
    plain = {name: weight.float() for name, weight in weights.items()}
    own = {name: weight.clone() for name, weight in plain.items()}
    packer = LayerPacker(spec=spec, weights=own, inputs=inputs, group_size=GROUP_SIZE, dtype=torch.bfloat16)
    return packer, plain, token_ids


def doubled(weights: Weights) -> Weights:
    return {name: weight.double() for name, weight in weights.items()}


@pytest.mark.parametrize("changes", SPECS)
def test_scaling_changes_no_logit(changes: dict[str, object]) -> None:
    spec = spec_of(changes)
    packer, plain, token_ids = packer_of(spec, seed=1)
    for layer in range(spec.num_layers):
        packer.scale(layer)
    changed = [name for name, weight in packer.weights.items() if not torch.equal(weight, plain[name])]
    assert {name.split(".")[-2] for name in changed} >= {"attention_norm", "mlp_norm", "qkv", "gate_up", "mlp_out"}
    expected = dense_logits(spec, doubled(plain), token_ids)
    assert (dense_logits(spec, doubled(packer.weights), token_ids) - expected).abs().max() < 1e-4


def test_what_layers_read_is_kept() -> None:
    """Of the first layer it is the normed embedding."""
    spec = spec_of({})
    packer, plain, token_ids = packer_of(spec, seed=2)
    x = plain["embedding.weight"][token_ids]
    h = x / (x.square().mean(-1, keepdim=True) + spec.norm_eps).sqrt() * plain["layers.0.attention_norm.weight"]
    torch.testing.assert_close(packer.inputs.rows("layers.0.qkv"), h)
    torch.testing.assert_close(packer.inputs.means("layers.0.qkv"), h.abs().mean(0))
    assert packer.inputs.rows("layers.1.mlp_out").shape == (NUM_TOKENS, spec.intermediate_size)


def test_large_inputs_are_rounded_finer_and_clipping_loses_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    weight_OI = torch.randn(40, 64, generator=generator)
    x_NI = torch.randn(100, 64, generator=generator)
    x_NI[:, 7] *= 50.0

    def error(rounded_OI: Tensor) -> float:
        return float((x_NI @ (rounded_OI - weight_OI).T).square().sum())

    scales_I = best_scales(weight_OI, x_NI, x_NI.abs().mean(0), GROUP_SIZE)
    plain = error(dequantise(to_groups(weight_OI, GROUP_SIZE)))
    assert scales_I[7] == scales_I.max()
    assert error(dequantise(to_groups(weight_OI * scales_I, GROUP_SIZE)) / scales_I) < plain / 4
    assert error(dequantise(to_groups(weight_OI, GROUP_SIZE, best_clips(weight_OI, x_NI, GROUP_SIZE)))) < plain


@pytest.mark.parametrize("changes", SPECS)
def test_stored_tensors_hold_what_was_packed(changes: dict[str, object]) -> None:
    spec = spec_of(changes)
    packer, _, _ = packer_of(spec, seed=4)
    packed = {name: weight for layer in range(spec.num_layers) for name, weight in packer.pack(layer).items()}
    tensors = stored_tensors(spec, packed, packer.weights, torch.bfloat16)
    module = "model.layers.1.self_attn.k_proj."
    own = {name.removeprefix(module): tensor for name, tensor in tensors.items() if name.startswith(module)}
    rows = slice(spec.q_size, spec.q_size + spec.kv_size)
    assert own.keys() - {"bias"} == {"qweight", "qzeros", "scales"}
    assert torch.equal(dequantised("awq", own, GROUP_SIZE).float(), dequantise(packed["layers.1.qkv"])[rows])
