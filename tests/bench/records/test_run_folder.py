"""What a run's folder keeps, and whom it refuses."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import ConfigError
from forerun_lab.bench.records.answers import Record, Turn
from forerun_lab.bench.records.run_folder import RunFolder, read_run
from tests.bench.players import plan_of, question

PLAN = plan_of({"code": [question(0), question(1)]}, ("draft_model",), temperatures=(0.0, 0.6))
RECORD = Record(
    question_id=0,
    category="",
    contestant="none",
    dataset="code",
    temperature=0.6,
    turns=(Turn(text="x", num_new_tokens=1, wall_s=0.5, token_ids=(4,)),),
)


def test_answers_and_choices_are_there_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "run", PLAN, {"machine": {"cores": 2}, "floor": None})
    assert folder.settings_of("draft_model", 0.6) is None
    folder.choose("draft_model", 0.6, {"depth": 3}, [{"settings": {"depth": 3}, "tokens_per_s": 1.0}])
    folder.skip("draft_model", 0.0, "it broke")
    folder.append(RECORD)
    folder.close()
    again = RunFolder(tmp_path / "a" / "run", PLAN, {"machine": {"cores": 4}})
    assert again.settings_of("draft_model", 0.6) == {"depth": 3}
    assert again.settings_of("draft_model", 0.0) is None
    assert (again.is_skipped("draft_model", 0.0), again.is_skipped("draft_model", 0.6)) == (True, False)
    assert again.find("code", "none", 0.6, (0, 0)) == RECORD
    assert again.find("code", "none", 0.6, (0, 1)) is None
    assert again.find("code", "none", 0.0, (0, 0)) is None
    again.close()
    about = read_run(tmp_path / "a" / "run" / "run.json")
    assert (about["machine"], about["continued"]) == ({"cores": 2}, [{"cores": 4}])
    assert (tmp_path / "a" / "run" / "code" / "none-temperature-0.6.jsonl").is_file()


def test_run_json_tells_what_a_report_needs(tmp_path: Path) -> None:
    RunFolder(tmp_path, PLAN, {"command": "forerun bench run"}).close()
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["version"] == 1
    assert about["command"] == "forerun bench run"
    assert (about["datasets"], about["temperatures"], about["num_prompts"]) == (["code"], [0.0, 0.6], 2)
    assert about["contestants"]["draft_model"] == {
        "kind": "drafter", "drafter": "none", "skipped": None, "settings": {}, "tried": {}, "skips": {},
    }  # fmt: skip
    assert plan_kinds(tmp_path / "b") == {"none": "drafter", "llama_cpp": "peer"}


def plan_kinds(path: Path) -> dict[str, str]:
    RunFolder(path, plan_of({}, peers=("llama_cpp",)), {}).close()
    return {name: entry["kind"] for name, entry in read_run(path / "run.json")["contestants"].items()}


def test_another_run_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    RunFolder(tmp_path, PLAN, {}).close()
    before = (tmp_path / "run.json").read_bytes()
    message = "max_new_tokens 3, this one has 9: give another folder to --out, or the same flags"
    with pytest.raises(ConfigError, match=message):
        RunFolder(tmp_path, replace(PLAN, sampling=replace(PLAN.sampling, max_new_tokens=9)), {})
    assert (tmp_path / "run.json").read_bytes() == before
    RunFolder(tmp_path, PLAN, {}).close()


def test_a_kill_before_the_first_run_json_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".run.json.0a.part").write_text('{"version"')
    RunFolder(tmp_path, PLAN, {}).close()
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 2, "plan": {}}', '{"version": 1, "plan": 3}']
)
def test_a_run_json_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=r"run.json is not a run .* name the folder of a run, or a new one"):
        RunFolder(tmp_path, PLAN, {})


HOLDER = """
import sys, time
from pathlib import Path
from forerun.core.locks import hold
lock = hold(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_two_processes_never_write_to_one_folder(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(ConfigError, match="another process writes to"):
                RunFolder(tmp_path, PLAN, {})
        finally:
            holder.kill()
    RunFolder(tmp_path, PLAN, {}).close()
