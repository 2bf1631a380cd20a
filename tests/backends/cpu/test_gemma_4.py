"""Models like Gemma 4's E2B, E4B and 31B on the native executor, against torch's, with every instruction set."""

import random
from dataclasses import replace
from typing import Final

import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault, library
from forerun.backends.torch.backend import REFERENCE
from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import ModelSpec, RopeSpec, WeightFormat
from forerun.core.sublayers import all_sublayers
from forerun.model.runner import Runner
from forerun.model.tree_cache import TreeCache
from forerun.model.weights import BlockWeight
from tests.backends.cpu.conftest import tiers_here
from tests.backends.cpu.test_executor import CAPACITY, RELATIVE, random_pass
from tests.backends.diff import diff_buffers
from tests.backends.torch.ops import random_parents
from tests.blocks import random_blocks
from tests.tiny import Weights, random_weights, tiny_runner, tiny_spec, tree_logits

pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))

WINDOW: Final = 9
COMMON: Final = {
    "family": "gemma4_text", "hidden_size": 40, "head_dim": 32, "full_head_dim": 64, "intermediate_size": 24,
    "vocab_size": 57, "norm_eps": 1e-6, "qk_norm": True, "tied_embeddings": True, "window": WINDOW, "norms": "around",
    "wide_norms": True, "gate": "gelu_tanh", "attention_scale": 1.0, "embedding_scale": 40**0.5, "logit_cap": 3.0,
    "rounds_embedding_scale": True, "value_norm": True, "layer_scale": True,
    "rope": RopeSpec(theta=1e6, kind="proportional", rotated_dims=16), "sliding_rope": RopeSpec(theta=1e4),
    "qkv_bias": False, "out_bias": False, "mlp_bias": False, "max_positions": CAPACITY,
}  # fmt: skip
LIKE: Final = {
    "E2B": {
        "num_layers": 6, "num_heads": 4, "num_kv_heads": 1, "sliding_layers": (0, 1, 3, 4), "layer_input_size": 16,
        "num_borrowing_layers": 3, "has_wide_borrowers": True,
    },
    "E4B": {
        "num_layers": 5, "num_heads": 4, "num_kv_heads": 2, "sliding_layers": (0, 1, 3), "layer_input_size": 12,
        "num_borrowing_layers": 2,
    },
    "31B": {
        "num_layers": 4, "num_heads": 8, "num_kv_heads": 4, "full_num_kv_heads": 1, "sliding_layers": (0, 1, 2),
    },
}  # fmt: skip
SIZES: Final = pytest.mark.parametrize("size", LIKE)


def model_like(size: str, dtype: torch.dtype, **changes: object) -> tuple[ModelSpec, Weights]:
    spec = tiny_spec(random.Random(0), **{**COMMON, **LIKE[size], **changes})
    return spec, random_weights(spec, torch.Generator().manual_seed(len(size)), dtype=dtype)


@SIZES
@pytest.mark.parametrize(
    ("dtype", "weight_format"), RELATIVE, ids=lambda value: str(value).rpartition(".")[2]
)  # fmt: skip
@pytest.mark.parametrize("seed", range(4))
def test_every_buffer_is_the_references(seed: int, dtype: torch.dtype, weight_format: WeightFormat, size: str) -> None:
    rng = random.Random(seed)
    spec, weights = model_like(size, dtype)
    mine, theirs = (TreeCache(spec, CAPACITY, dtype=kind, device="cpu") for kind in (dtype, torch.float32))
    wide = {name: weight.float() for name, weight in weights.items()}
    with torch.inference_mode():
        native = NATIVE.executor(spec, LoadedWeights(weights, weight_format), mine)
        reference = REFERENCE.executor(spec, LoadedWeights(wide, weight_format), theirs)
        prefix_len = rng.choice([0, 1, 15, 40])
        generator = torch.Generator().manual_seed(seed)
        shape = mine.keys_LSKD[:, :prefix_len].shape
        text = torch.randn(shape, generator=generator).to(dtype)
        for cache in (mine, theirs):
            cache.keys_LSKD[:, :prefix_len] = text
            cache.values_LSKD[:, :prefix_len] = text.flip(1)
            cache.keys_LSKD[:, prefix_len + 30 :] = float("nan")
    inputs = replace(random_pass(rng, spec, prefix_len), num_logit_rows=1)
    found = diff_buffers(native, mine, reference, theirs, inputs)
    assert {"scale", "rope_append", "embed"} <= {difference.op.kind for difference in found}
    for difference in found:
        assert difference.relative <= RELATIVE[dtype, weight_format], difference


def written(runner: Runner, seed: int) -> Tensor:
    """Logits [T, V] of a prompt, of decoded tokens and of a tree, each longer than the window."""
    rng = random.Random(seed)
    text = [rng.randrange(runner.spec.vocab_size) for _ in range(40)]
    parts = [runner.extend(text[:25], num_logit_rows=25)]
    parts += [runner.extend([token], num_logit_rows=1) for token in text[25:]]
    parents = random_parents(rng, 12)
    parts.append(tree_logits(runner, [rng.randrange(runner.spec.vocab_size) for _ in parents], parents))
    return torch.cat(parts)


@SIZES
@pytest.mark.parametrize("seed", range(2))
def test_a_text_and_a_tree_have_torchs_logits_and_the_same_bits_with_every_instruction_set(
    seed: int, size: str
) -> None:
    spec, weights = model_like(size, torch.float32)
    expected = written(tiny_runner(spec, {name: weight.double() for name, weight in weights.items()}), seed)
    found = {}
    for tier in tiers_here():
        library().forerun_select_tier(tier.encode())
        found[tier] = written(tiny_runner(spec, weights, backend=NATIVE), seed)
        assert (found[tier] - expected).abs().max() <= 1e-4 * expected.abs().max(), tier
    library().forerun_select_tier(None)
    bits = [logits for tier, logits in found.items() if tier != "portable"]  # which rounds products and sums apart
    assert all(torch.equal(logits, bits[0]) for logits in bits)


@SIZES
def test_a_row_has_the_same_bits_in_a_prompt_alone_and_with_any_number_of_threads(size: str) -> None:
    spec, weights = model_like(size, torch.float32)
    token_ids = [random.Random(1).randrange(spec.vocab_size) for _ in range(50)]
    runner = tiny_runner(spec, weights, backend=NATIVE)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for piece in (50, 1, 7):
                runner.forget()
                pieces = [token_ids[start : start + piece] for start in range(0, 50, piece)]
                found.append(torch.cat([runner.extend(ids, num_logit_rows=len(ids)) for ids in pieces]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(logits, found[0]) for logits in found)


@SIZES
def test_layers_left_out_keep_their_factor(size: str) -> None:
    """A pass without any sublayer still multiplies by each layer's number and adds its embedding."""
    spec, weights = model_like(size, torch.float32)
    mine, theirs = (TreeCache(spec, CAPACITY, dtype=torch.float32, device="cpu") for _ in range(2))
    with torch.inference_mode():
        native = NATIVE.executor(spec, LoadedWeights(weights), mine)
        reference = REFERENCE.executor(spec, LoadedWeights(weights), theirs)
    inputs = replace(
        random_pass(random.Random(3), spec, 0), skipped=frozenset(all_sublayers(spec.num_layers)), num_logit_rows=1
    )  # fmt: skip
    torch.testing.assert_close(native.run(inputs).logits, reference.run(inputs).logits, atol=1e-4, rtol=0)


class PackedTables(LoadedWeights):
    """Weights of which the table of each layer's embeddings has blocks."""

    def linear(self, name: str, *part: object) -> tuple[object, Tensor | None]:  # type: ignore[override]
        weight, bias_O = super().linear(name)
        if name != "layer_table":
            return weight, bias_O
        blocks_OB = random_blocks("Q6_K", seed=1, num_out=weight.shape[0], blocks_in_row=weight.shape[1] // 256)
        return BlockWeight(blocks_OB=blocks_OB, block_type="Q6_K"), None


def test_embeddings_for_each_layer_may_have_blocks() -> None:
    spec, weights = model_like("E4B", torch.float32, layer_input_size=256)
    logits = []
    for backend in (NATIVE, REFERENCE):
        runner = Runner(
            spec, PackedTables(weights), backend=backend, capacity=CAPACITY, dtype=torch.float32, device="cpu"
        )  # fmt: skip
        logits.append(written(runner, 0))
    assert (logits[0] - logits[1]).abs().max() <= 1e-4 * logits[1].abs().max()
