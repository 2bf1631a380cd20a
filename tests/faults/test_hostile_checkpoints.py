"""Whatever a stranger's checkpoint holds, a chat is answered, or refused in one clear line, and soon."""

import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from forerun import Engine, EngineConfig, ForerunError, NoDrafter, SamplingParams
from forerun.text import encoder
from forerun.text.chat_template import NO_VARIABLES, ChatTemplate
from forerun.wires.bounded_child import Limits
from tests.cli.command_lines import Line, fault_of, limited, run_here
from tests.faults.hostile_checkpoints import KINDS, HostileFolders

LOGGER = logging.getLogger(__name__)
CHUNK = 200
NUM_CHUNKS = 15
FEW = 12
FIRST = 96  # a normalizer that makes the library panic is among the first
NUM_SERVED = 42
SERVED_PER_TEST = 7
CLI_SHARE = 4  # one of so many folders goes through the command
SHORT = Limits(max_s=1.0)  # as the server's; the time of a test is that of its endless loops
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostileFolders:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ChatTemplate.render, "__defaults__", (NO_VARIABLES, SHORT))
    monkeypatch.setattr(ChatTemplate.variables, "__defaults__", (SHORT,))
    monkeypatch.setattr(encoder, "LIMITS", replace(encoder.LIMITS, max_s=SHORT.max_s))
    return HostileFolders(tmp_path / "model")


def through_api(folder: Path) -> str:
    """Open an engine and ask; anything but an answer or a ForerunError goes on to the test."""
    try:
        with limited(), Engine(EngineConfig(target=str(folder), drafter=NoDrafter(), num_threads=1)) as engine:
            engine.generate(MESSAGES, SamplingParams(max_new_tokens=2))
    except ForerunError as error:
        return "refused" if str(error).strip() else "refused without a word"
    return "answered"


def through_command(folder: Path) -> str:
    words = ("chat", str(folder), "--threads", "1", "--drafter", "none", "-n", "2", "--device", "cpu")
    line = Line(words=words, typed=b"hi\n", variables={})
    code, stdout, stderr = run_here(line)
    assert fault_of(line, code, stdout, stderr) is None, stderr[-600:]
    return "answered" if code == 0 else "refused"


def play(folders: HostileFolders, numbers: range) -> Counter[str]:
    """What became of the folders of these seeds."""
    counts: Counter[str] = Counter()
    faults = []
    for number in numbers:
        kind = folders.write(number)
        way = through_command if number // len(KINDS) % CLI_SHARE == 0 else through_api
        try:
            counts[f"{kind} {way(folders.folder)}"] += 1
        except BaseException as error:  # whatever comes out is what is looked for
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            faults.append((number, kind, way.__name__, f"{type(error).__name__}: {error}"[:600]))
    assert faults == []
    return counts


def test_a_sample_is_answered_or_refused_in_one_line(folders: HostileFolders) -> None:
    counts = play(folders, range(FIRST, FIRST + FEW))
    assert counts.total() == FEW


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_each_is_answered_or_refused_in_one_line(chunk: int, folders: HostileFolders) -> None:
    counts = play(folders, range(chunk * CHUNK, (chunk + 1) * CHUNK))
    LOGGER.info("%s", dict(counts))
    for kind in KINDS:
        assert counts[f"{kind} answered"] > 0
        assert counts[f"{kind} refused"] > 0
