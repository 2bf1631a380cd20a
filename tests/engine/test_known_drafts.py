"""The drafts of the package: which targets they are taken for by themselves."""

import random
from pathlib import Path

import pytest
import torch

from forerun.checkpoints.huggingface.config import CONFIG_NAME, MAP_NAME
from forerun.checkpoints.open import BUILTIN_FOLDERS, builtin_folder, open_source
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import BUILTIN_DRAFT, BUILTIN_TARGET, KNOWN_DRAFTS, Automatic
from forerun.core.errors import ConfigError
from forerun.engine.engine import Engine
from forerun.engine.known_draft import draft_for, known_draft
from forerun.model.vocabulary_map import VocabularyMap
from forerun.text.vocabulary import Vocabulary
from tests.drafting.mapped import random_map, write_mapped


@pytest.mark.parametrize(("fingerprint", "name"), KNOWN_DRAFTS.items())
def test_a_draft_is_listed_under_the_vocabulary_that_lies_beside_it(fingerprint: str, name: str) -> None:
    if not (builtin_folder(name) / CONFIG_NAME).is_file():
        pytest.skip(f"{name} is not in this package")
    assert Vocabulary.of(open_source(name).tokenizer()).fingerprint == fingerprint


def test_a_target_is_drafted_for_whatever_it_is_called_and_a_draft_is_not() -> None:
    both = ["draft_model", "recycling", "prompt_lookup"]
    assert drafters_of(str(builtin_folder(BUILTIN_TARGET))) == drafters_of(BUILTIN_TARGET) == both
    assert drafters_of(BUILTIN_DRAFT) == ["recycling", "prompt_lookup"], (
        "a draft of its own size would cost what it brings"
    )


def test_a_draft_whose_map_is_of_another_number_of_ids_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = builtin_folder(BUILTIN_TARGET)
    num_ids = open_source(BUILTIN_TARGET).spec().vocab_size
    vocabulary = random_map(random.Random(1), num_ids, num_draft=num_ids // 2)
    draft = write_mapped(tmp_path / "draft", builtin_folder(BUILTIN_DRAFT), vocabulary)
    monkeypatch.setitem(BUILTIN_FOLDERS, BUILTIN_DRAFT, str(draft))
    assert drafters_of(BUILTIN_TARGET) == ["draft_model", "recycling", "prompt_lookup"]
    resized = torch.arange(num_ids + 64, dtype=torch.int32) % num_ids
    same_tokens = VocabularyMap(target_ids=resized, draft_ids=resized.clone())
    other = write_mapped(tmp_path / "target", target, same_tokens)
    (other / MAP_NAME).unlink()
    assert drafters_of(str(other)) == ["recycling", "prompt_lookup"]


def drafters_of(target: str) -> list[str]:
    config = EngineConfig(target=target, drafter=Automatic(), num_threads=1, max_length=64, measures_speedup=False)
    with Engine(config) as engine:
        return list(engine.drafting.held)


def test_commands_take_the_known_draft_and_ask_for_one_where_none_is_known(tmp_path: Path) -> None:
    assert draft_for(BUILTIN_TARGET, None) == known_draft(str(builtin_folder(BUILTIN_TARGET))) == BUILTIN_DRAFT
    assert draft_for(BUILTIN_TARGET, "auto") == BUILTIN_DRAFT
    assert draft_for(BUILTIN_TARGET, "another") == "another"
    for named in (None, "auto"):
        with pytest.raises(ConfigError, match=f"no draft is known for {tmp_path}: .* --draft"):
            draft_for(str(tmp_path), named)
