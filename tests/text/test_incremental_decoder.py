"""Streamed pieces are the decoded text, whatever the ids and however they arrive."""

import random
from pathlib import Path

import pytest

from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.text.tokenizer import IncrementalDecoder, Tokenizer
from tests.text.tiny_tokenizers import TEXT, write_byte_level, write_llama


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return read_tokenizer(tokenizer_folder)


def test_pieces_of_random_ids_make_up_the_whole_text(tokenizer: Tokenizer) -> None:
    rng = random.Random(0)
    num_ids = len(tokenizer.vocabulary()) + 5
    byte_ids = [id_ for id_ in range(num_ids) if tokenizer.is_byte(id_)]
    for _ in range(300):
        ids = [rng.randrange(num_ids) for _ in range(rng.randrange(40))]
        if byte_ids:
            ids = [rng.choice(byte_ids) if rng.random() < 0.3 else id_ for id_ in ids]
        assert _stream(tokenizer, ids, rng) == tokenizer.decode(ids)


def test_pieces_of_real_text_make_up_the_whole_and_are_never_half_a_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT + "🦊🏽 e\u0301 \u200d  x")
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.feed([id_]) for id_ in ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == tokenizer.decode(ids)


def test_a_piece_does_not_depend_on_how_many_ids_arrive_at_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    decoder = IncrementalDecoder(tokenizer)
    assert decoder.feed(ids) + decoder.flush() == tokenizer.decode(ids)


def test_text_is_shown_at_once_where_nothing_can_change_it(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(write_llama(tmp_path))
    decoder = IncrementalDecoder(tokenizer)
    vocabulary = tokenizer.vocabulary()
    pieces = [
        decoder.feed([vocabulary[token]]) for token in ("<s>", "▁the", "▁fox", "▁", "▁and", "<0xC3>", "<0xA9>", ".")
    ]
    assert pieces == ["", "the", " fox", " ", " and", "", "", "é."]


@pytest.mark.parametrize("write", [write_byte_level, write_llama])
def test_work_stays_linear_for_a_model_that_writes_only_broken_characters(tmp_path: Path, write: object) -> None:
    tokenizer = read_tokenizer(write(tmp_path))  # type: ignore[operator]
    counted = _Counting(tokenizer)
    vocabulary = tokenizer.vocabulary()
    broken = vocabulary.get("<0xFF>", vocabulary.get("ÿ"))
    assert broken is not None
    decoder = IncrementalDecoder(counted)  # type: ignore[arg-type]
    text = "".join([decoder.feed([broken]) for _ in range(4096)]) + decoder.flush()
    assert text == tokenizer.decode([broken] * 4096)
    assert counted.num_decoded < 6 * 4096


class _Counting:
    """A tokenizer that counts the ids it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.num_decoded = 0

    def decode(self, ids: list[int]) -> str:
        self.num_decoded += len(ids)
        return self._tokenizer.decode(ids)

    def is_silent(self, id_: int) -> bool:
        return self._tokenizer.is_silent(id_)

    def is_byte(self, id_: int) -> bool:
        return self._tokenizer.is_byte(id_)


def _stream(tokenizer: Tokenizer, ids: list[int], rng: random.Random) -> str:
    """The text of ids fed in random pieces."""
    decoder = IncrementalDecoder(tokenizer)
    text, start = "", 0
    while start < len(ids):
        size = rng.randint(1, 6)
        text += decoder.feed(ids[start : start + size])
        start += size
    return text + decoder.flush()
