"""Known models: the table is their config.json, and gives the number of weights that their files have."""

from pathlib import Path

import pytest

from forerun.checkpoints.huggingface.config import read_model_spec
from forerun.checkpoints.known_models import find_known, known_configs, known_models
from forerun.checkpoints.open import nearest_name, open_source
from forerun.core.errors import CheckpointError
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
    "Llama-2-7B": 6_738_415_616,
    "Llama-2-13B": 13_015_864_320,
    "Llama-2-70B": 68_976_648_192,
    "TinyLlama-1.1B": 1_100_048_384,
    "CodeLlama-7B": 6_738_546_688,
    "CodeLlama-13B": 13_016_028_160,
    "CodeLlama-34B": 33_743_970_304,
    "Yi-6B": 6_061_035_520,
    "Yi-34B": 34_388_917_248,
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


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
        ("Llama-3.2-3B-Instruct", "Llama-3.2-3B"),
        ("Meta-Llama-3-70B-Instruct", "Llama-3-70B"),
        ("deepseek-coder-33b-instruct", "deepseek-coder-33b"),
        ("DeepSeek-R1-Distill-Qwen-32B", "R1-Distill-Qwen-32B"),
        ("Qwen2-72B-Instruct", "Qwen2-72B"),
        ("qwen2-72b", "Qwen2-72B"),
        ("Llama-2-13b-hf", "Llama-2-13B"),
        ("Llama-2-70b-chat", "Llama-2-70B"),
        ("codellama/CodeLlama-34b-hf", "CodeLlama-34B"),
        ("Yi-34B", "Yi-34B"),
    ],
)
def test_a_model_is_known_by_the_names_of_its_repositories(spelled: str, name: str) -> None:
    known = find_known(spelled)
    assert known is not None
    assert known.name == name


def test_a_folder_takes_precedence_over_a_known_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Yi-34B").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_known("Yi-34B") is None
    assert find_known("y" * 5000) is None, "not even a path"


def test_a_draft_is_known_smaller_and_has_as_many_tokens() -> None:
    for name, spec in known_models().items():
        known = find_known(name)
        assert known is not None
        assert known.int4_bytes < known.bfloat16_bytes
        if known.draft is not None:
            draft = known_models()[known.draft]
            assert 3 * draft.num_parameters < spec.num_parameters
            assert abs(draft.vocab_size - spec.vocab_size) <= 128, name  # Qwen2 pads its larger models' vocabulary


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("smolm2", "smollm2"),
        ("buitlin", "builtin"),
        ("qwen2.5-codr:7b", "qwen2.5-coder:7b"),
        ("Lama-3.3-70B", "Llama-3.3-70B"),
        ("qwen2.5-coder:8b", None),
        ("Llama-4-13B", None),
        ("Llama-2-14B", None),
        ("gpt-oss", "gpt-oss"),
        ("gpt-oss:21b", None),
    ],
)
def test_a_name_is_suggested_only_for_a_slip_never_for_another_version_or_size(written: str, meant: str | None) -> None:
    assert nearest_name(written) == meant


def test_a_known_name_stands_for_its_repository() -> None:
    with pytest.raises(CheckpointError, match=r"meta-llama/Llama-3\.3-70B-Instruct could not be fetched"):
        open_source("Llama-3.3-70B")
