"""Which tokens a limit on thoughts allows, with the special tokens of published models."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.text.output.thoughts import ThoughtMarks
from forerun.text.thought_limit import ThoughtLimit
from forerun.text.tokenizer import Tokenizer

SPECIAL = ("<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>")
WORDS = ("analysis", "final", "so", "assistant")
QWEN = ThoughtMarks(begin="<think>", end="</think>")
GPT_OSS = ThoughtMarks()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Bytes, a few words, and special tokens."""
    folder = tmp_path_factory.mktemp("tokenizer")
    backend = tokenizers.Tokenizer(models.BPE())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: id_ for id_, letter in enumerate(alphabet)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            pair = (word[: end - 1], word[end - 1])
            if word[:end] not in vocabulary:
                vocabulary[word[:end]] = len(vocabulary)
                merges.append(pair)
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    backend.save(str(folder / "tokenizer.json"))
    Path(folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return read_tokenizer(folder)


class Reader:
    """A limit, and the tokens that it allows after a text."""

    def __init__(self, tokenizer: Tokenizer, marks: ThoughtMarks, most: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = 512
        self.limit = ThoughtLimit(tokenizer, marks, most, self.vocab_size)

    def write(self, text: str) -> "Reader":
        self.limit.commit(self.tokenizer.encode_inside(text))
        return self

    @property
    def allowed(self) -> set[int] | None:
        """None: every token."""
        rows = self.limit.masks([0], [-1])
        if rows is None:
            return None
        bits = np.unpackbits(rows.view(np.uint8), bitorder="little")
        return {int(id_) for id_ in np.flatnonzero(bits)}

    def id_of(self, token: str) -> int:
        (id_,) = self.tokenizer.encode_inside(token)
        return id_


def test_only_the_closing_mark_may_follow_the_last_token(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, QWEN, 2).write("<think>")
    assert reader.write("so").allowed is None
    assert reader.write("so").allowed == {reader.id_of("</think>")}
    assert reader.limit.forced() == [reader.id_of("</think>")]


def test_no_second_thought_begins(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, QWEN, 1).write("<think>so</think>")
    assert reader.allowed == {*range(reader.vocab_size)} - {reader.id_of("<think>")}
    assert reader.write("so").allowed == {*range(reader.vocab_size)} - {reader.id_of("<think>")}


def test_a_thought_that_ends_early_changes_nothing(tokenizer: Tokenizer) -> None:
    assert Reader(tokenizer, QWEN, 2).write("<think>so</think>final").allowed is None


def test_an_answer_without_a_thought_is_free(tokenizer: Tokenizer) -> None:
    assert Reader(tokenizer, QWEN, 1).write("so so so").allowed is None
    assert Reader(tokenizer, QWEN, 1).write("so<think>so so").allowed is None, "a thought begins only at the start"


def test_zero_means_none(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, QWEN, 0)
    assert reader.id_of("<think>") not in (reader.allowed or {})
    reader = Reader(tokenizer, ThoughtMarks(begin="<think>", end="</think>", is_open=True), 0)
    assert reader.allowed == {reader.id_of("</think>")}


def test_no_character_is_cut(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, QWEN, 2).write("<think>s")
    first, *others = tokenizer.encode_inside("🦊")
    reader.limit.commit([first])
    for id_ in others:
        assert reader.allowed is None
        reader.limit.commit([id_])
    assert reader.allowed == {reader.id_of("</think>")}


def test_bytes_that_are_no_character_do_not_prolong_a_thought(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, QWEN, 1).write("<think>")
    first = tokenizer.encode_inside("🦊")[0]
    reader.limit.commit([first] * 4)
    assert reader.allowed == {reader.id_of("</think>")}


def test_thoughts_of_several_messages_share_the_limit(tokenizer: Tokenizer) -> None:
    thought = "<|channel|>analysis<|message|>"
    reader = Reader(tokenizer, GPT_OSS, 3).write(f"{thought}soso<|end|><|start|>assistant{thought}")
    assert reader.allowed is None
    assert reader.write("so").allowed == {reader.id_of("<|end|>")}
    assert reader.write("<|end|><|start|>assistant").allowed is None
    refused = {*range(reader.vocab_size)} - (reader.write("<|channel|>").allowed or set())
    assert refused == {reader.id_of("analysis")}
    assert reader.write("final<|message|>soso").allowed is None


def test_only_nodes_that_are_allowed_stay(tokenizer: Tokenizer) -> None:
    reader = Reader(tokenizer, QWEN, 1).write("<think>")
    so = reader.id_of("so")
    end = reader.id_of("</think>")
    token_ids = [so, so, so, end, so, end, reader.id_of("<think>")]
    parents = [-1, 0, 1, 1, 3, 0, 3]
    assert reader.limit.allowed_nodes(token_ids, parents) == [0, 1, 3, 4, 5]
    rows = reader.limit.masks(token_ids, parents)
    assert rows is not None
    assert [int(row.view(np.uint32).astype(object).sum()) == 1 << end % 32 for row in rows[:2]] == [False, True]
