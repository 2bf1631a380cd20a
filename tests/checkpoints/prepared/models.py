"""Tiny models, divided among ranks as `forerun prepare` does it."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.core.config import EngineConfig, WeightsName
from forerun.core.drafter_config import NoDrafter
from forerun_lab.cli.prepare import write_parts
from tests.checkpoints.packed import write_packed
from tests.golden.families import FAMILIES

SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}  # multiples of a group of 32


def config_of(folder: Path, num_ranks: int, weights: WeightsName = "stored") -> EngineConfig:
    return EngineConfig(
        target=str(folder), target_ranks=num_ranks, weights=weights, drafter=NoDrafter(), dtype="float32"
    )


def write_model(folder: Path, family: str, *, is_packed: bool = False) -> HuggingFaceFolder:
    """A tiny model of a family, in float32 or packed in 4 bits."""
    replace(FAMILIES[family], changes={**FAMILIES[family].changes, **SIZES}).save(folder)
    if is_packed:
        write_packed(folder, load_file(folder / "model.safetensors"), "awq", group_size=32, dtype=torch.float32)
    return HuggingFaceFolder(name=str(folder), folder=folder)


def prepare(source: HuggingFaceFolder, out: Path, num_ranks: int, weights: WeightsName = "stored") -> Path:
    """Prepare a model."""
    out.mkdir()
    write_parts(source, config_of(source.folder, num_ranks, weights), out)
    return out
