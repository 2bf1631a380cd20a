"""Facts about a model, and whether two fit together, without loading either."""

import json
import random
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Run
from tests.drafting.mapped import random_map, write_mapped


def test_inspect_gives_sizes_memory_and_files(run: Run, target: str) -> None:
    facts = json.loads(run("inspect", target, "--json").stdout)
    assert (facts["supported"], facts["problem"], facts["dtype"]) == (True, None, "float32")
    assert facts["weights_bytes"] == 4 * facts["num_parameters"]
    assert facts["kv_bytes_per_token"] == 2 * 3 * 2 * 8 * 4
    assert facts["int8_kv_bytes_per_token"] == 2 * 3 * 2 * (8 + 4)
    assert facts["bytes_at_max_length"] == facts["weights_bytes"] + 512 * facts["kv_bytes_per_token"]
    assert {"config.json", "model.safetensors"} <= {file["name"] for file in facts["files"]}
    shown = run("inspect", target)
    assert shown.exit_code == 0
    assert "qwen2" in shown.stdout


def test_inspect_says_why_a_model_cannot_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    for flags in ([], ["--json"]):
        shown = run("inspect", str(tmp_path), *flags)
        assert shown.exit_code == 3
        assert "gpt2" in shown.stdout


def test_inspect_counts_the_memory_of_states_and_of_saved_ones(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.golden.random_families import FAMILIES

    FAMILIES["qwen3_5"].save(1, tmp_path)
    facts = json.loads(run("inspect", str(tmp_path), "--json").stdout)
    cache = facts["spec"]["max_positions"] * facts["kv_bytes_per_token"]
    assert 0 < facts["snapshot_bytes"] < facts["state_bytes"]
    assert facts["bytes_at_max_length"] == facts["weights_bytes"] + facts["state_bytes"] + cache
    assert "however long the text is" in run("inspect", str(tmp_path)).stdout


def test_inspect_names_the_draft_head_in_a_models_own_files(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.drafting.heads.test_mtp import write_target

    write_target(tmp_path, 1, torch.float32)
    assert json.loads(run("inspect", str(tmp_path), "--json").stdout)["draft_head"].startswith("MTP, ")
    assert "`auto` drafts with it" in run("inspect", str(tmp_path)).stdout


def test_check_accepts_a_pair_with_the_same_tokens(run: Run, target: str, draft: str) -> None:
    facts = json.loads(run("check", target, draft, "--json").stdout)
    assert (facts["fits"], facts["num_differences"], facts["first_differences"]) == (True, 0, [])
    assert facts["size_ratio"] > 1
    shown = run("check", target, draft)
    assert shown.exit_code == 0
    assert "yes" in shown.stdout


def test_check_shows_where_two_models_differ(run: Run, target: str, plain: str) -> None:
    shown = run("check", target, plain, "--json")
    facts = json.loads(shown.stdout)
    assert (shown.exit_code, facts["fits"]) == (3, False)
    assert facts["first_differences"][0] == {"token_id": 0, "target_token": "!", "draft_token": "<unk>"}
    assert "'<unk>'" in run("check", target, plain).stdout


@pytest.mark.parametrize(("config", "message"), [("no JSON", "is not valid JSON"), ("[]", "holds a JSON list")])
def test_check_names_a_config_that_cannot_be_read(
    run: Run, target: str, tmp_path: Path, config: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    for pair in ((target, str(tmp_path)), (str(tmp_path), target)):
        shown = run("check", *pair)
        assert shown.exit_code == 3
        assert f"{tmp_path / 'config.json'} {message}" in shown.stderr


def test_a_draft_with_a_part_of_the_tokens_is_shown_and_fits_its_own_target_only(
    run: Run, target: str, tmp_path: Path
) -> None:
    num_ids = json.loads(run("inspect", target, "--json").stdout)["spec"]["vocab_size"]
    folders = {}
    for num_target in (num_ids, num_ids - 1):
        vocabulary = random_map(random.Random(1), num_target, num_draft=100)
        folders[num_target] = str(write_mapped(tmp_path / str(num_target), Path(target), vocabulary))
    facts = json.loads(run("inspect", folders[num_ids], "--json").stdout)
    assert (facts["num_target_ids"], facts["spec"]["vocab_size"]) == (num_ids, 100)
    assert f", a part of its target's {num_ids}\n" in run("inspect", folders[num_ids]).stdout
    assert json.loads(run("check", target, folders[num_ids], "--json").stdout)["num_drafted_ids"] == 100
    assert f"100 of {num_ids}: the draft can propose no others" in run("check", target, folders[num_ids]).stdout
    shown = run("check", target, folders[num_ids - 1])
    assert shown.exit_code == 3
    assert f"a target with {num_ids - 1} ids, but {target} has {num_ids}" in shown.stdout
