"""Streamed pieces are the decoded text, whatever the ids and however they arrive."""

import random
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.text.detokenizer import IncrementalDecoder
from forerun.text.tokenizer import Tokenizer
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
        assert _stream(tokenizer, ids, rng) == _decoded(tokenizer, ids)


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


@pytest.mark.parametrize("character", ["🦊", "é", "你"])
def test_a_character_of_which_only_a_part_was_written_is_left_out(tokenizer: Tokenizer, character: str) -> None:
    vocabulary = tokenizer.vocabulary()
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    letter_of = {byte: letter for letter in letters for byte in [_byte_of(letter, letters)]}
    parts = [vocabulary.get(f"<0x{byte:02X}>", vocabulary.get(letter_of[byte], -1)) for byte in character.encode()]
    begin = tokenizer.encode("the fox", add_special_tokens=False)
    for num_parts in range(1, len(parts)):
        assert _stream(tokenizer, begin + parts[:num_parts], random.Random(0)) == "the fox"
        broken = _stream(tokenizer, begin + parts[:num_parts] + begin, random.Random(0))
        assert broken.count("\ufffd") >= 1, "the text goes on behind it"
    assert _stream(tokenizer, begin + parts, random.Random(0)) == "the fox" + character


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
    assert text == tokenizer.decode([broken] * 4096), "0xFF begins no character"
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

    def bytes_of(self, id_: int) -> bytes:
        return self._tokenizer.bytes_of(id_)


def _byte_of(letter: str, letters: list[str]) -> int:
    """The byte that a letter of byte-level tokens stands for: those beyond Latin-1 are for the bytes left over."""
    taken = {ord(other) for other in letters if ord(other) < 256}
    left_over = [byte for byte in range(256) if byte not in taken]
    return ord(letter) if ord(letter) < 256 else left_over[ord(letter) - 256]


def _decoded(tokenizer: Tokenizer, ids: list[int]) -> str:
    """All ids decoded, without a last character of which only a part is there."""
    heard = [id_ for id_ in ids if not tokenizer.is_silent(id_)]
    end = b"".join(tokenizer.bytes_of(id_) for id_ in heard[-4:])
    lengths = (1, 2, 3)
    starts = [n for n in lengths if n <= len(end) and _may_begin_a_character(end[-n:])]
    if not starts:
        return tokenizer.decode(heard)
    if tokenizer.is_byte(heard[-1]):
        return tokenizer.decode(heard[: -max(starts)])
    return tokenizer.decode(heard)[:-1]


def _may_begin_a_character(part: bytes) -> bool:
    """By trial: some one to three bytes more make it a whole one."""
    if part[0] < 0xC2 or any(byte & 0xC0 != 0x80 for byte in part[1:]):
        return False
    rests = [bytes((first, *[0x80] * more)) for more in range(3) for first in (0x80, 0x90, 0xA0)]
    return any(_is_character(part + rest) for rest in rests)


def _is_character(text: bytes) -> bool:
    try:
        return len(text.decode()) == 1
    except UnicodeDecodeError:
        return False


def _stream(tokenizer: Tokenizer, ids: list[int], rng: random.Random) -> str:
    """The text of ids fed in random pieces."""
    decoder = IncrementalDecoder(tokenizer)
    text = ""
    start = 0
    while start < len(ids):
        size = rng.randint(1, 6)
        text += decoder.feed(ids[start : start + size])
        start += size
    return text + decoder.flush()
