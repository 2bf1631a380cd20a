"""Conversations come back from their files as they were; anything else is refused by name."""

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forerun import ConfigError, SamplingParams
from forerun.cli.chat.transcript import MAX_BYTES, Transcript, read_transcript
from forerun.core.kept_files import KeptFiles
from forerun.text.conversation import Exchange

TALK = Transcript(
    model="builtin",
    identity="abc",
    params=SamplingParams(temperature=0.5, seed=3, stop=("a\n", "b"), logit_bias={7: -1.5}, stop_token_ids=(4,)),
    variables={"enable_thinking": False, "tools": [1, None]},
    system_prompt="Be brief.\n",
    turns=(Exchange(said="Hi \u0007", answer="北京 👋"), Exchange(said="", answer=" x\n", is_stopped=True)),
    num_dropped=1,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "talk.json").write_text(TALK.to_json(), encoding="utf-8")
    return tmp_path / "talk.json"


def read(file: Path) -> Transcript:
    return read_transcript(file, KeptFiles(MAX_BYTES))


def test_what_was_written_is_read(file: Path) -> None:
    assert read(file) == TALK


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("format", "forerun conversation, version 2", "its format is not 'forerun conversation, version 1'"),
        ("more", 1, "not 'format', 'identity', 'messages', 'model', 'more'"),
        ("model", 3, "model is 3, but must be a text"),
        ("settings", [], "settings is [], but must be an object"),
        ("settings", {"temprature": 1}, "settings holds 'temprature', which is not a setting"),
        ("settings", {"temperature": -1}, "settings: temperature -1.0 must be 0 (greedy)"),
        ("settings", {"logit_bias": {"x": 1}}, "settings: invalid literal for int() with base 10: 'x'"),
        ("template_variables", None, "template_variables is None, but must be an object"),
        ("num_dropped_turns", 3, "num_dropped_turns is 3, but must be a number of turns, of 2"),
        ("num_dropped_turns", True, "num_dropped_turns is True"),
        ("messages", {}, "messages is {}, but must be a list"),
        ("messages", [1], "message 0 is 1, but must hold only a role and a content"),
        ("messages", [{"role": "user", "content": "x"}], "the roles of its messages are ['user']"),
        ("messages", [{"role": "user", "content": "x", "name": "y"}], "message 0 is {'content': 'x'"),
        ("messages", [{"role": "user", "content": "x", "stopped": True}], "message 0 is {'content': 'x'"),
        ("messages", [{"role": "assistant", "content": "x", "stopped": 1.5}], "message 0 is {'content': 'x'"),
    ],
)
def test_what_is_wrong_is_named(file: Path, key: str, value: Any, fault: str) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    with pytest.raises(ConfigError) as refused:
        read(file)
    assert str(refused.value).startswith(f"{file} cannot be continued as a conversation: ")
    assert fault in str(refused.value)


def test_damaged_files_are_refused_or_read_and_nothing_else(file: Path) -> None:
    whole = file.read_bytes()
    chance = random.Random(1)
    for _ in range(1000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = chance.choice((len(damaged), chance.randrange(len(damaged))))
        file.write_bytes(damaged[:cut])
        with suppress(ConfigError):
            assert isinstance(read(file), Transcript)
    for text in ("[" * 100_000, whole.decode().replace("brief", "\\ud800"), ""):
        file.write_text(text)
        with pytest.raises(ConfigError, match="it is not valid JSON"):
            read(file)
