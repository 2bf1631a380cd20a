"""What opening a model takes on a device: what stays there, and at most one weight more.

Every storage is counted. Large models are opened on "meta", by all of the code that opens them on a GPU; only the bytes
are not read.
"""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.names import EMBEDDING_NAME, fused_shapes, tensor_plan
from forerun.core.model_spec import ModelSpec, WeightFormat
from forerun.model import quantise
from forerun.model.runner import Runner
from forerun_lab.checks.gpu.models import LLAMA_70B
from tests.checkpoints.folders import random_tensors, write_single
from tests.marks import rest_slow
from tests.storage_bytes import StorageBytes
from tests.unread_weights import open_unread

pytest.importorskip("triton")

from forerun.backends.gpu.backend import TRITON
from forerun.backends.gpu.passes.packed_linear import pack_words

GB = 1_000_000_000
SPEC = replace(LLAMA_70B, num_heads=16, hidden_size=2048, intermediate_size=8192, vocab_size=64)  # layers decide
BYTES = {"plain": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 128}  # of an element of a layer; int4 has a scale to 128 inputs


class Opened(NamedTuple):
    """Bytes of an open model, and the most that opening it took."""

    live: int
    peak: int


def opened(spec: ModelSpec, weight_format: WeightFormat, **stored_as: str) -> Opened:
    with StorageBytes("meta") as counted:
        runner = open_unread(spec, weight_format, backend=TRITON, stored_as=stored_as)
        found = Opened(counted.live, counted.peak)
        del runner
    return found


def layer_elements(spec: ModelSpec) -> list[int]:
    """Of each linear layer's weight."""
    shapes = fused_shapes(tensor_plan(spec)).items()
    return [prod(shape) for name, shape in shapes if name.startswith("layers.0.") and len(shape) == 2]


@pytest.mark.parametrize("weight_format", rest_slow(BYTES, 1))
def test_a_model_takes_what_stays_and_one_weight_more(weight_format: WeightFormat) -> None:
    one, two = (opened(replace(SPEC, num_layers=count), weight_format) for count in (1, 2))
    elements = layer_elements(SPEC)
    cache = 256 * SPEC.kv_bytes_per_token(2) / SPEC.num_layers
    per_layer = BYTES[weight_format] * sum(elements) + cache
    small = 300_000  # Norms, the table of rows, scales of int8, zeros of int4.
    assert per_layer <= two.live - one.live <= per_layer + small
    codes = 0 if weight_format == "plain" else 1  # a byte for each element of a weight, before it is packed
    assert two.peak - two.live <= (2 + codes) * max(elements)
    assert two.peak - two.live <= one.peak - one.live, "no more with more layers"


def test_llama_70b_in_4_bits_opens_in_42_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of its layers, embedding and head; its other layers are like the first."""
    monkeypatch.setattr(quantise, "ELEMENTS_PER_BLOCK", 1 << 24)  # more than there are at a time: quicker on "meta"
    first = opened(replace(LLAMA_70B, num_layers=1), "int4")
    per_layer = (0.5 + 4 / 128) * sum(layer_elements(LLAMA_70B)) + 256 * LLAMA_70B.kv_bytes_per_token(2) / 80 + 100_000
    assert first.live + 79 * per_layer <= 39.8 * GB
    assert first.peak + 79 * per_layer <= 39.9 * GB


def test_words_of_4_bits_are_made_of_a_few_outputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = quantise.to_int4(torch.randn(300, 704, generator=torch.Generator().manual_seed(0)))
    whole = pack_words(weight)
    monkeypatch.setattr(quantise, "ELEMENTS_PER_BLOCK", 5000)
    with StorageBytes("cpu") as counted:
        assert torch.equal(pack_words(weight), whole)
    assert counted.peak < weight.values_OI.nbytes + 1.5 * whole.nbytes


@pytest.mark.parametrize("weight_format", ["plain", "int4"])
def test_an_embedding_of_codes_that_is_the_head_is_there_once(weight_format: WeightFormat) -> None:
    spec = replace(SPEC, num_layers=1, hidden_size=512, intermediate_size=1024, vocab_size=4096, tied_embeddings=True)
    dense, codes = (opened(spec, weight_format, **{EMBEDDING_NAME: dtype}) for dtype in ("BF16", "Q8_0"))
    assert codes.live == dense.live


def test_bytes_on_meta_are_those_of_a_model_that_is_read(tmp_path: Path) -> None:
    folder = HuggingFaceFolder(name="x", folder=write_single(tmp_path, random_tensors(), torch_dtype="bfloat16"))
    spec = folder.spec()
    with StorageBytes("cpu") as counted:
        weights = folder.weights(dtype=torch.bfloat16, weight_format="int4")
        runner = Runner(spec, weights, backend=TRITON, capacity=256, dtype=torch.bfloat16, device="cpu")
        del weights
        live = counted.live
        del runner
    assert live == opened(spec, "int4").live
