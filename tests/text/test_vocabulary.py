"""A draft fits when it means the same trained tokens by the same ids; where others differ, that is said."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forerun.checkpoints.huggingface.tokenizer import read_tokenizer
from forerun.core.errors import VocabularyError
from forerun.text.tokenizer import Tokenizer
from forerun.text.vocabulary import (
    Fit,
    TokenDifference,
    Vocabulary,
    VocabularyMatch,
    compare_vocabularies,
    require_match,
)
from tests.text.tiny_tokenizers import write_llama

NUM_TRAINED = 4010  # with three control tokens
FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
LLAMA_3 = ("<|begin|>", "<|end|>", "<|reserved_0|>", "<|reserved_1|>", "<|start_header|>", "<|reserved_2|>", "<|eot|>")
LLAMA_31 = ("<|begin|>", "<|end|>", "<|pad|>", "<|step|>", "<|start_header|>", "<|eom|>", "<|eot|>")
R1 = ("<begin>", "<end>", "<User>", "<Assistant>", "<think>", "</think>", "<pad>")
Change = Callable[[dict[str, int]], None]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tokenizer]:
    """A Llama-like tokenizer of some 4,000 trained tokens after a change to them, with tokens added behind them."""

    def write(added: tuple[str, ...] = (), change: Change = lambda vocab: None, **flags: Any) -> Tokenizer:
        path = write_llama(tmp_path / str(len(list(tmp_path.iterdir())))) / "tokenizer.json"
        content = json.loads(path.read_text())
        vocab = content["model"]["vocab"]
        vocab |= {f"word{id_}": id_ for id_ in range(len(vocab), NUM_TRAINED)}
        change(vocab)
        end = max(vocab.values()) + 1
        content["added_tokens"] += [
            {"id": end + idx, "content": token, **FLAGS, **flags} for idx, token in enumerate(added)
        ]
        path.write_text(json.dumps(content))
        return read_tokenizer(path.parent)

    return write


def compare(target: Tokenizer, draft: Tokenizer) -> VocabularyMatch:
    """What both sides find when they meet in one process; and it is what they find across a wire."""
    ours = Vocabulary.of(target)
    theirs = Vocabulary.of(draft)
    match = compare_vocabularies(ours, theirs)
    told = compare_vocabularies(ours, Vocabulary.from_bytes(theirs.to_bytes()))
    assert told.fit is match.fit
    assert (told.num_shared, told.num_trained_unequal) == (match.num_shared, match.num_trained_unequal)
    assert [entry.token_id for entry in told.unequal] == [entry.token_id for entry in match.unequal]
    return match


def swap(vocab: dict[str, int]) -> None:
    for id_ in range(1000, 1010, 2):
        left = f"word{id_}"
        right = f"word{id_ + 1}"
        vocab[left], vocab[right] = vocab[right], vocab[left]


def rename(num: int) -> Change:
    def change(vocab: dict[str, int]) -> None:
        for id_ in range(1000, 1000 + num):
            vocab[f"other{id_}"] = vocab.pop(f"word{id_}")

    return change


def lengthen(num: int) -> Change:
    def change(vocab: dict[str, int]) -> None:
        vocab |= {f"more{idx}": NUM_TRAINED + idx for idx in range(num)}

    return change


def test_equal_vocabularies_fit_in_silence(make: Callable[..., Tokenizer], caplog: pytest.LogCaptureFixture) -> None:
    target = make(LLAMA_3)
    draft = make(LLAMA_3)
    match = compare(target, draft)
    assert (match.fit, match.num_shared, match.unequal) == (Fit.WHOLE, len(target.vocabulary()), ())
    with caplog.at_level(logging.WARNING):
        require_match(target, draft)
    assert not caplog.records


@pytest.mark.parametrize(
    ("target", "draft", "num_unequal"),
    [
        (LLAMA_3, LLAMA_31, 3),  # reserved tokens got names between 3.0 and 3.1
        (R1, LLAMA_31, 7),  # a distilled model with chat markers of its own
        (LLAMA_31, (), 7),
        ((), LLAMA_31, 7),
    ],
)
def test_added_tokens_may_differ_and_that_is_said(
    make: Callable[..., Tokenizer],
    caplog: pytest.LogCaptureFixture,
    target: tuple[str, ...],
    draft: tuple[str, ...],
    num_unequal: int,
) -> None:
    match = compare(make(target), make(draft))
    assert (match.fit, len(match.unequal), match.num_trained_unequal) == (Fit.PARTIAL, num_unequal, 0)
    with caplog.at_level(logging.WARNING):
        require_match(make(target), make(draft), target_name="big", draft_name="small")
    (record,) = caplog.records
    assert f"big and small differ in {num_unequal} added tokens and 0 of" in record.getMessage()


@pytest.mark.parametrize(
    ("change", "fit"),
    [
        (rename(4), Fit.PARTIAL),
        (rename(5), Fit.NONE),
        (lengthen(4), Fit.PARTIAL),
        (lengthen(40), Fit.NONE),
        (swap, Fit.NONE),
        (lambda vocab: [vocab.pop(f"word{id_}") for id_ in range(2000, NUM_TRAINED)], Fit.NONE),
    ],
    ids=["4 renamed", "5 renamed", "4 more", "40 more", "10 exchanged", "half missing"],
)
@pytest.mark.parametrize("is_target_changed", [True, False])
def test_trained_tokens_may_differ_in_one_of_a_thousand(
    make: Callable[..., Tokenizer], change: Change, fit: Fit, is_target_changed: bool
) -> None:
    changed = make(change=change)
    other = make()
    assert compare(*((changed, other) if is_target_changed else (other, changed))).fit is fit


def test_the_error_names_the_first_differing_ids_and_both_tokens(make: Callable[..., Tokenizer]) -> None:
    target = make()
    draft = make(change=swap)
    match = compare(target, draft)
    assert match.differences[0] == TokenDifference(token_id=1000, target_token="word1000", draft_token="word1001")
    with pytest.raises(VocabularyError) as caught:
        require_match(target, draft, target_name="big", draft_name="small")
    message = str(caught.value)
    assert "id 1000 is 'word1000' in the target, 'word1001' in the draft" in message
    assert "big and small" in message
    assert "name no draft" in message
