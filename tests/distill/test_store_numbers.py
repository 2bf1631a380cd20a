"""The numbers of a text store's files: none is given twice, whatever was deleted."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from forerun.core.errors import CheckpointError
from forerun_lab.distill.run_place import remove_leftovers
from forerun_lab.distill.text_store import TextStore
from forerun_lab.distill.writer import WrittenText


def text_of(token_id: int) -> WrittenText:
    return WrittenText(
        token_ids=torch.full((3,), token_id, dtype=torch.int32),
        num_given=1,
        top_ids=torch.zeros(3, 2, dtype=torch.int32),
        top_log_probs=torch.zeros(3, 2, dtype=torch.float16),
    )


def test_a_store_without_one_of_its_files_replaces_none_of_the_others(tmp_path: Path) -> None:
    """A damaged file is to be deleted, as the error about it says."""
    store = TextStore(tmp_path)
    for number in range(4):
        store.add([text_of(number)], 10.0)
    (tmp_path / "texts_00001_main.safetensors").unlink()
    resumed = TextStore(tmp_path)
    for number in range(4, 7):
        resumed.add([text_of(number)], 10.0)
    for known in (resumed, TextStore(tmp_path)):
        assert [int(text.token_ids[0]) for text in known.read()] == [0, 2, 3, 4, 5, 6]
        assert (known.seconds, known.num_texts) == (60.0, 6)


@pytest.mark.parametrize("name", ["texts_a", "texts_00001_main"])
def test_a_file_of_others_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.safetensors"
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match=rf"{name}.safetensors (is not a file of this run|cannot be read)"):
        TextStore(tmp_path).read()


def test_what_a_killed_run_left_is_removed_and_another_commands_folder_is_not(tmp_path: Path) -> None:
    left = tmp_path / "distill" / ".t.0a.part"
    others = tmp_path / ".x.part" / ".rank.0b.part"
    for path in (left, others):
        path.parent.mkdir()
        path.touch()
    remove_leftovers(tmp_path)
    assert (left.exists(), others.exists()) == (False, True)
