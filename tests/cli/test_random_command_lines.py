"""Whatever is typed ends in a right run or in one clear line."""

from pathlib import Path

import pytest

from tests.cli.random_command_lines import Lines, fault_of, run_here

FEW, MANY = 40, 2000


@pytest.mark.parametrize("num_lines", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
def test_a_random_command_line_is_run_or_refused_in_one_line(
    num_lines: int, target: str, draft: str, plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    lines, faults = Lines(7, tmp_path, (target, draft, plain)), []
    for _ in range(num_lines):
        line = lines.make()
        code, stdout, stderr = run_here(line)
        if fault := fault_of(line, code, stdout, stderr):
            faults.append((fault, line, stderr[-400:]))
    assert faults == []
