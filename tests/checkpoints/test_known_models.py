"""Known models: the table is their config.json, and gives the number of weights that their files have."""

from pathlib import Path

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.known_models import known_configs, known_models
from tests.checkpoints.folders import write_json

# Values of the table: published config.json files, read in copies on the hub and in public repositories, two for each
# model. Weights: as published with the files, where a tied head is stored once. A slip in any size would change them.
NUM_WEIGHTS = {
    "Llama-3.2-1B": 1_235_814_400,
    "Llama-3.2-3B": 3_212_749_824,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.3-70B": 70_553_706_496,
    "deepseek-coder-1.3b": 1_346_471_936,
    "deepseek-coder-6.7b": 6_740_512_768,
    "deepseek-coder-33b": 33_342_991_360,
    "Qwen2-0.5B": 494_032_768,
    "Qwen2-1.5B": 1_543_714_304,
    "Qwen2-7B": 7_615_616_512,
    "Qwen2-72B": 72_706_203_648,
    "Qwen2.5-14B": 14_770_033_664,
    "Qwen2.5-32B": 32_763_876_352,
    "R1-Distill-Qwen-1.5B": 1_777_088_000,
    "R1-Distill-Qwen-7B": 7_615_616_512,
    "R1-Distill-Qwen-14B": 14_770_033_664,
    "R1-Distill-Qwen-32B": 32_763_876_352,
    "R1-Distill-Llama-8B": 8_030_261_248,
    "R1-Distill-Llama-70B": 70_553_706_496,
    "Qwen3-0.6B": 596_049_920,
    "Qwen3-1.7B": 1_720_574_976,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-8B": 8_190_735_360,
    "Qwen3-14B": 14_768_307_200,
    "Qwen3-32B": 32_762_123_264,
}


def test_the_table_is_a_config_that_checkpoints_have(tmp_path: Path) -> None:
    for name, spec in known_models().items():
        write_json(tmp_path / "config.json", known_configs()[name])
        assert read_model_spec(tmp_path) == spec, name


def test_every_known_model_has_as_many_weights_as_its_files() -> None:
    assert {name: spec.num_parameters for name, spec in known_models().items()} == NUM_WEIGHTS
