"""forerun inspect --ranks: who would hold what."""

import json
from pathlib import Path

import pytest

from forerun.checkpoints.known_models import known_models
from forerun.cli.rank_sheet import rank_rows, rank_sheets
from tests.cli.conftest import Run


def test_a_row_for_each_rank() -> None:
    rows = rank_rows(rank_sheets(known_models()["Llama-3-70B"], 6, 2))
    assert [name for name, _ in rows] == [f"rank {rank}" for rank in range(6)]
    assert rows[0][1].startswith("heads 12, kv 0,0,1, MLP 4800, head rows 21376: ")
    assert "heads 4 (+8 padding), kv 7 (+2 padding), MLP 4672 (+128 padding)" in rows[5][1]


def test_the_command_shows_them(run: Run) -> None:
    shown = run("inspect", "builtin", "--ranks", "3")
    assert shown.exit_code == 0
    assert "rank 2" in shown.stdout
    told = json.loads(run("inspect", "builtin", "--ranks", "3", "--json").stdout)
    assert len(told["ranks"]) == 3
    assert told["ranks"][0]["weights_bytes"] > 0


def test_known_sizes_are_shared_without_files(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("inspect", "Llama-3.3-70B", "--ranks", "6")
    assert shown.exit_code == 0
    assert "none: its sizes are known" in shown.stdout
    assert "heads 4 (+8 padding)" in shown.stdout
    told = json.loads(run("inspect", "Qwen3-32B", "--ranks", "2", "--json").stdout)
    assert (told["folder"], told["supported"], told["num_parameters"]) == (None, True, 32_762_123_264)
    assert told["weights_bytes"] == 2 * 32_762_123_264
    (tmp_path / "Qwen3-32B").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("inspect", "Qwen3-32B").exit_code == 5  # a folder of that name is meant, and is no model


@pytest.mark.parametrize("number", ["0", "65"])
def test_impossible_numbers_are_refused(run: Run, number: str) -> None:
    refused = run("inspect", "builtin", "--ranks", number)
    assert refused.exit_code == 2
    assert "1 to 64" in refused.stderr
