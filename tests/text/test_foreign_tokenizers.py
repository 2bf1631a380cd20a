"""Tokenizers whose patterns are unknown encode in a process with limits, and with the same ids."""

import json
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import tokenizers

import forerun
from forerun.checkpoints.huggingface.foreign_parts import foreign_parts
from forerun.checkpoints.huggingface.split_patterns import LLAMA3, QWEN2
from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.core.errors import CheckpointError, ConfigError
from forerun.text import encoder
from forerun.text.tokenizer import Tokenizer
from forerun.wires.bounded_child import LimitError, Limits

FORM = json.loads((Path(forerun.__file__).parent / "assets" / "target" / "tokenizer.json").read_text())
PRE_TOKENIZERS = FORM["pre_tokenizer"]["pretokenizers"]
GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TEXT = "The dog's 12 toys,\n  \n <|endoftext|>caf\u00e9 \U0001f600!"


def split(pattern: str) -> Mapping[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def with_split(pattern: str) -> Mapping[str, Any]:
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(pattern), *PRE_TOKENIZERS]}}


def sequence(part: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    return {"type": "Sequence", "normalizers": [part] * count}


def write(folder: Path, parts: Mapping[str, Any]) -> str:
    text = json.dumps(FORM | parts)
    (folder / "tokenizer.json").write_text(text)
    return text


def opened(folder: Path, parts: Mapping[str, Any]) -> Tokenizer:
    write(folder, parts)
    return read_tokenizer(folder)


@pytest.mark.parametrize(
    ("parts", "is_foreign"),
    [
        ({}, False),
        (with_split(LLAMA3), False),
        (with_split(QWEN2), False),
        (with_split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), False),
        (with_split(r"\s?\p{L}+"), False),
        ({"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}}, False),
        ({"normalizer": sequence({"type": "NFC"}, 16)}, True),  # with the two of the pre-tokenizer
        (with_split("(a+)+$"), True),
        (with_split(r"\s+$"), True),
        (with_split("[a&&b]+"), True),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "b"}, "content": "a"}}, True),
        ({"normalizer": GROWING}, True),
        ({"normalizer": {"type": "ByteLevel"}}, True),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, True),
        ({"normalizer": {"replace": "a"}}, True),
        ({"normalizer": {"type": ["NFC"]}}, True),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, True),
    ],
)
def test_what_is_foreign(parts: Mapping[str, Any], is_foreign: bool) -> None:
    assert bool(foreign_parts(json.dumps(FORM | parts).encode(), "it")) is is_foreign


@pytest.mark.parametrize(
    "parts",
    [
        with_split("x+y|[a-e]{2}(?=r)"),
        {"normalizer": {"type": "Sequence", "normalizers": [GROWING, {"type": "Prepend", "prepend": "_"}]}},
    ],
)
def test_a_foreign_tokenizer_gives_the_ids_of_its_file(tmp_path: Path, parts: Mapping[str, Any]) -> None:
    text = write(tmp_path, parts)
    tokenizer = read_tokenizer(tmp_path)
    plain = tokenizers.Tokenizer.from_str(text)
    for said in ("", TEXT, "bear xyz" * 5_000):
        assert tokenizer.encode(said) == plain.encode(said).ids
        assert tokenizer.decode(plain.encode(said).ids) == plain.decode(plain.encode(said).ids)
    assert tokenizer.vocabulary() == plain.get_vocab(with_added_tokens=True)
    assert json.loads(tokenizer.to_json())["normalizer"] == json.loads(plain.to_str())["normalizer"]


def test_foreign_control_tokens_in_a_message_stay_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}<|endoftext|>{{ m.content }}{% endfor %}")
    messages = [{"role": "user", "content": "a<|endoftext|>b"}]
    prepended = {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, GROWING]}}
    tokenizer = opened(tmp_path, prepended)
    ids = tokenizer.apply_chat_template(messages)
    control = tokenizer.vocabulary()["<|endoftext|>"]
    assert ids.count(control) == 1
    assert tokenizer.decode(ids).count("_") == 1, "nothing is put before the text inside a text"


def test_a_growing_text_ends_within_the_limits_and_the_next_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "LIMITS", Limits(max_s=1.0, max_bytes=2**29))
    tokenizer = opened(tmp_path, {"normalizer": sequence(GROWING, 60)})
    begun = monotonic()
    with pytest.raises(LimitError, match=r"tokenizer takes too much time or memory for this text.*shorter text"):
        tokenizer.encode("a")
    assert monotonic() - begun < 60
    assert tokenizer.encode("b") == [tokenizer.vocabulary()["b"]]


def test_a_damaged_pattern_is_one_error_at_opening(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer cannot read this text \('Oniguruma error.*fetch the model again"):
        opened(tmp_path, with_split("(a+"))


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""},
        {"type": "Sequence", "decoders": [GROWING]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 17},
    ],
)
def test_foreign_decoders_are_refused(tmp_path: Path, decoder: Mapping[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="decodes tokens by patterns or growing replacements"):
        opened(tmp_path, {"decoder": decoder})
