"""The machine in words and numbers, fit to be published."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import forerun
from forerun_lab.bench.run.machine import commit_of, describe_machine

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_a_description_names_what_speed_depends_on() -> None:
    facts = describe_machine()
    assert {"cpu", "cores", "isa", "threads", "os", "python", "torch", "forerun", "date"} <= set(facts)
    assert facts["threads"] == torch.get_num_threads()
    assert facts["forerun"] == forerun.__version__
    assert json.loads(json.dumps(facts)) == facts


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", "-C", str(folder), *author, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@needs_git
def test_a_package_under_version_control_has_a_commit_and_tells_of_changes(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "x")
    commit = git(tmp_path, "rev-parse", "--short", "HEAD")
    assert commit_of(package) == commit
    (package / "__init__.py").write_text("changed = True")
    assert commit_of(package) == f"{commit}-dirty"
