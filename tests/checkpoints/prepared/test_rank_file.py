"""A rank of a prepared folder has the weights that it would have read from the model, and reads no other file."""

from pathlib import Path

import pytest
import torch

from forerun.checkpoints.huggingface.names import tensor_plan
from forerun.checkpoints.prepared.folder import PreparedFolder
from forerun.checkpoints.prepared.manifest import rank_name
from forerun.checkpoints.prepared.write import write_ranks
from forerun.core.config import WeightsName
from forerun.core.errors import CheckpointError
from forerun.core.model_spec import ModelSpec
from forerun.engine.model_loading import Checkpoint, weight_format_of
from forerun.engine.rank_weights import output_weight, rank_weights, shard_plans, stored_bytes
from forerun.model.quantise import as_plain, dequantise
from forerun.model.weights import WeightSource
from tests.checkpoints.prepared.models import config_of, prepare, write_model
from tests.marks import in_turn

FAMILIES = ("llama2", "llama3.2", "llama_biased", "qwen2", "qwen3")
CASES = [*((family, False) for family in FAMILIES), ("qwen2", True)]


def require_same(own: WeightSource, expected: WeightSource, spec: ModelSpec) -> None:
    assert torch.equal(dequantise(own.table()), dequantise(expected.table()))
    names = {place.name for place in tensor_plan(spec).values()} | {"head.weight"}
    for name in names - {"embedding.weight"}:
        module, _, kind = name.rpartition(".")
        if kind == "bias":
            continue
        if module.endswith("norm"):
            assert torch.equal(own.vector(module), expected.vector(module)), name
            continue
        weight, bias = own.linear(module)
        wanted, wanted_bias = expected.linear(module)
        assert type(weight) is type(wanted), name
        assert torch.equal(dequantise(weight), dequantise(wanted)), name
        assert (bias is None) == (wanted_bias is None), name
        assert bias is None or wanted_bias is None or torch.equal(bias, wanted_bias), name


@pytest.mark.parametrize(("family", "is_packed"), CASES)
@pytest.mark.parametrize(("weights", "num_ranks"), in_turn(["stored", "int8", "int4"], [1, 2, 3]))
def test_a_rank_has_its_part(
    family: str, is_packed: bool, weights: WeightsName, num_ranks: int, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "model", family, is_packed=is_packed)
    config = config_of(tmp_path, num_ranks, weights)
    folder = prepare(source, tmp_path / "prepared", num_ranks, weights)
    prepared = PreparedFolder(name=str(folder), folder=folder)
    whole = Checkpoint.open(source, config)
    checkpoint = Checkpoint.open(prepared, config_of(tmp_path, num_ranks))
    assert prepared.identity() == source.identity()
    assert shard_plans(checkpoint, num_ranks) == shard_plans(whole, num_ranks)
    for plan in shard_plans(whole, num_ranks):
        path = folder / rank_name(plan.rank)
        own = rank_weights(checkpoint, plan)
        require_same(own, rank_weights(whole, plan), source.spec())
        assert abs(path.stat().st_size - stored_bytes(whole, plan)) < 0.2 * path.stat().st_size + 20_000
        path.unlink()  # no later rank reads it


@pytest.mark.parametrize(("family", "is_tied"), [("llama2", False), ("llama3.2", True)])
@pytest.mark.parametrize(("weights", "num_ranks"), in_turn(["stored", "int8", "int4"], [1, 2, 3]))
def test_the_whole_output_is_joined(
    family: str, is_tied: bool, weights: WeightsName, num_ranks: int, tmp_path: Path
) -> None:
    source = write_model(tmp_path / "model", family)
    folder = prepare(source, tmp_path / "prepared", num_ranks, weights)
    prepared = PreparedFolder(name=str(folder), folder=folder)
    expected = output_weight(source, dtype=torch.float32, weight_format=weight_format_of(weights))
    assert torch.equal(as_plain(output_weight(prepared, dtype=torch.float32)), as_plain(expected))
    (folder / rank_name(num_ranks - 1)).unlink()
    if is_tied and weights == "stored" and num_ranks > 1:  # the first rank has the embedding
        assert torch.equal(as_plain(output_weight(prepared, dtype=torch.float32)), as_plain(expected))
    else:
        with pytest.raises(CheckpointError, match=rf"{rank_name(num_ranks - 1)} is missing.*: copy the files"):
            output_weight(prepared, dtype=torch.float32)


def test_finished_ranks_are_not_written_again(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", "llama2")
    config = config_of(tmp_path, 2)
    whole = Checkpoint.open(source, config)
    (tmp_path / rank_name(0)).write_bytes(b"finished")
    write_ranks(tmp_path, source.spec(), shard_plans(whole, 2), lambda plan: rank_weights(whole, plan))
    assert (tmp_path / rank_name(0)).read_bytes() == b"finished"
    assert (tmp_path / rank_name(1)).stat().st_size > 10_000
