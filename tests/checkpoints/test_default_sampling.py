"""generation_config.json to sampling: what it states holds, what it leaves out is off."""

import logging
from pathlib import Path
from typing import Any

import pytest

from forerun.checkpoints.huggingface.generation import read_default_sampling
from forerun.core.config import SamplingParams
from tests.checkpoints.folders import write_json

LLAMA = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2]}
QWEN = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 0.7, "top_p": 0.8, "top_k": 20}


@pytest.mark.parametrize(
    ("values", "params"),
    [
        ({}, SamplingParams()),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, SamplingParams()),
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, SamplingParams(repetition_penalty=1.1)),
        ({"do_sample": True}, SamplingParams(temperature=1.0)),
        ({"do_sample": True, "temperature": 0.0, "top_p": 1.0}, SamplingParams()),
        ({"temperature": None, "top_k": None}, SamplingParams()),
        ({"temperature": 0.6, "top_p": 0.95}, SamplingParams(temperature=0.6, top_p=0.95)),
        ({"min_p": 0.05}, SamplingParams(temperature=1.0, min_p=0.05)),
        ({"repetition_penalty": 1.2}, SamplingParams(repetition_penalty=1.2)),
        (LLAMA, SamplingParams(temperature=0.6, top_p=0.9)),
        (QWEN, SamplingParams(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)),
    ],
)
def test_what_the_file_states_holds(tmp_path: Path, values: dict[str, Any], params: SamplingParams) -> None:
    write_json(tmp_path / "generation_config.json", values)
    assert read_default_sampling(tmp_path) == params


def test_without_the_file_it_is_greedy(tmp_path: Path) -> None:
    assert read_default_sampling(tmp_path) == SamplingParams()


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": "hot"},
        {"temperature": 10**400},
        {"top_k": -1},
        {"top_k": 2.5},
        {"top_p": float("nan")},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"do_sample": "yes"},
    ],
)
def test_what_cannot_be_used_is_named_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
) -> None:
    good = {name: value for name, value in QWEN.items() if name not in wrong}
    write_json(tmp_path / "generation_config.json", good)
    expected = read_default_sampling(tmp_path)
    write_json(tmp_path / "generation_config.json", good | wrong)
    with caplog.at_level(logging.WARNING):
        assert read_default_sampling(tmp_path) == expected
    (record,) = caplog.records
    assert all(word in record.getMessage() for word in ("generation_config.json", *wrong))
