"""The dtype of a checkpoint is the one its weights are stored in, whatever its config says."""

from pathlib import Path

import pytest
import torch

from forerun.checkpoints.huggingface.stored_tensors import read_dtype
from forerun.checkpoints.open import open_source
from forerun.core.config import EngineConfig
from forerun.engine.model_loading import Checkpoint
from tests.checkpoints.folders import random_tensors, write_single


@pytest.mark.parametrize("said", [..., None, "float32", "float64", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_weights_decide(tmp_path: Path, dtype: torch.dtype, said: object) -> None:
    write_single(tmp_path, random_tensors(dtype), torch_dtype=said)
    assert f"torch.{read_dtype(tmp_path)}" == str(dtype)


def test_bfloat16_weights_beside_a_config_of_float32_compute_in_bfloat16(tmp_path: Path) -> None:
    write_single(tmp_path, random_tensors(torch.bfloat16), torch_dtype="float32")
    source = open_source(str(tmp_path))
    assert Checkpoint.open(source, EngineConfig()).dtype in (torch.bfloat16, torch.float32)
    assert Checkpoint.open(source, EngineConfig(dtype="float64")).dtype == torch.float64
