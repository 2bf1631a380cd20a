"""Targets whose files disagree, and disks without room: named at once, never after hours of writing."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch

from forerun.checkpoints.huggingface.config import MAP_NAME
from forerun.checkpoints.open import builtin_folder, open_source
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import CheckpointError, ConfigError
from forerun.model.vocabulary_map import VocabularyMap
from forerun_lab.distill.config import DistillConfig, DistillProgress, DistillStop
from forerun_lab.distill.run import Distillation
from forerun_lab.distill.run_place import RunLog, RunPlace
from tests.drafting.mapped import write_mapped

NUM_IDS = 1500  # fewer than the tokenizer's


def distillation(target: Path, out: Path, *text: Path) -> Distillation:
    engine = EngineConfig(target=str(target), num_threads=1)
    return Distillation(DistillConfig(engine=engine, out=out, time=5.0, layers=2, text=text))


@pytest.mark.slow
def test_stop_tokens_that_the_target_does_not_have_are_left_out(tmp_path: Path) -> None:
    target = copytree(builtin_folder(BUILTIN_TARGET), tmp_path / "target")
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 999_999]}))

    def stop(progress: DistillProgress) -> None:
        if progress.doing == "the draft learns":
            raise DistillStop

    with pytest.raises(DistillStop):
        distillation(target, tmp_path / "out").run(stop)


def test_the_folder_of_a_stopped_run_is_no_draft_yet(tmp_path: Path) -> None:
    engine = EngineConfig(target=BUILTIN_TARGET)
    RunPlace(DistillConfig(engine=engine, out=tmp_path / "d2", time=5.0), "identity").close()
    with pytest.raises(CheckpointError, match="d2 holds an unfinished run of forerun distill: run the same command"):
        open_source(str(tmp_path / "d2"))


def test_a_target_that_computes_more_than_a_llama_is_refused(tmp_path: Path) -> None:
    target = copytree(builtin_folder(BUILTIN_TARGET), tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    config |= {"model_type": "gpt_oss", "num_local_experts": 4, "rope_parameters": None}
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"do not compute a clamped gate or .* experts"):
        distillation(target, tmp_path / "out")


def test_texts_with_tokens_that_the_target_does_not_have_are_refused(tmp_path: Path) -> None:
    ids = torch.arange(NUM_IDS, dtype=torch.int32)
    vocabulary = VocabularyMap(target_ids=ids, draft_ids=ids.clone())
    target = write_mapped(tmp_path / "target", builtin_folder(BUILTIN_TARGET), vocabulary)
    (target / MAP_NAME).unlink()
    text = tmp_path / "text.txt"
    text.write_text("Overwhelmingly extraordinary Constantinople.")
    with pytest.raises(ConfigError, match="the model has ids 0 to 1499"):
        distillation(target, tmp_path / "out", text)


def test_a_log_on_a_full_disk_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(ConfigError, match=r"log\.jsonl cannot be written \(No space left"):
        RunLog(path).add(kind="step")
