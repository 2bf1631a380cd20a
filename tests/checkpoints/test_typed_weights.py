"""Weights are handed over once, each in its format."""

import weakref

import pytest
import torch

from forerun.checkpoints.typed_weights import LoadedWeights
from forerun.core.model_spec import WeightFormat
from forerun.model.weights import DenseWeight, Int4Weight, Int8Weight
from tests.tiny import plain_spec, random_weights

QKV = "layers.0.qkv"
HEAD = "head"


def loaded(weight_format: WeightFormat, *, is_tied: bool = False) -> LoadedWeights:
    spec = plain_spec(tied_embeddings=is_tied, qkv_bias=True)
    return LoadedWeights(random_weights(spec, torch.Generator().manual_seed(1)), weight_format)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    ("weight_format", "of_layers", "of_head"),
    [("plain", DenseWeight, DenseWeight), ("int8", Int8Weight, Int8Weight), ("int4", Int4Weight, Int8Weight)],
)
def test_layers_and_head_have_their_formats(
    weight_format: WeightFormat, of_layers: type, of_head: type, is_tied: bool
) -> None:
    source = loaded(weight_format, is_tied=is_tied)
    weight, bias_O = source.linear(QKV)
    assert isinstance(weight, of_layers)
    assert bias_O is not None
    assert len(bias_O) == weight.shape[0]
    head, no_bias = source.linear(HEAD)
    assert isinstance(head, of_head)
    assert no_bias is None


def test_a_head_without_a_weight_of_its_own_is_the_embedding_which_stays() -> None:
    source = loaded("plain", is_tied=True)
    head, _ = source.linear(HEAD)
    assert head is source.table()


@pytest.mark.parametrize("weight_format", ["plain", "int8", "int4"])
def test_what_was_taken_is_held_no_longer(weight_format: WeightFormat) -> None:
    """So that plain copies go one by one while packed ones are made."""
    tensors = {f"{QKV}.weight": torch.ones(4, 32), "embedding.weight": torch.ones(3, 4)}
    seen = weakref.ref(tensors[f"{QKV}.weight"])
    source = LoadedWeights(tensors, weight_format)
    del tensors
    weight, _ = source.linear(QKV)
    if weight_format == "plain":
        assert seen() is not None
        del weight
    assert seen() is None
    with pytest.raises(KeyError):
        source.linear(QKV)
