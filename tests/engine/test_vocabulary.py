"""A draft fits when it means the same tokens by the same ids; if not, the first difference is named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from forerun.core.errors import VocabularyError
from forerun.engine.tokenizer import Tokenizer
from forerun.engine.vocabulary import TokenDifference, compare_vocabularies, require_match
from tests.engine.tiny_tokenizers import write_llama


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[Callable[[dict[str, int]], None], list[str]], Tokenizer]:
    """A Llama-like tokenizer after a change to its trained vocabulary, with tokens added behind it."""

    def make(change: Callable[[dict[str, int]], None], added: list[str]) -> Tokenizer:
        path = write_llama(tmp_path / str(len(list(tmp_path.iterdir())))) / "tokenizer.json"
        content = json.loads(path.read_text())
        vocab = content["model"]["vocab"]
        change(vocab)
        end = max(vocab.values()) + 1
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        content["added_tokens"] += [{"id": end + idx, "content": token, **flags} for idx, token in enumerate(added)]
        path.write_text(json.dumps(content))
        return Tokenizer.load(path.parent)

    return make


def keep(vocab: dict[str, int]) -> None:
    pass


def swap(vocab: dict[str, int]) -> None:
    vocab["."], vocab["!"] = vocab["!"], vocab["."]


def test_equal_vocabularies_match(changed: Callable[..., Tokenizer]) -> None:
    target = changed(keep, [])
    match = compare_vocabularies(target, changed(keep, []))
    assert match.is_match
    assert match.num_shared == len(target.vocabulary())
    assert match.differences == match.only_in_target == match.only_in_draft == ()


@pytest.mark.parametrize("is_target_longer", [True, False])
def test_added_tokens_behind_the_shorter_vocabulary_do_not_matter(
    changed: Callable[..., Tokenizer], is_target_longer: bool
) -> None:
    longer, shorter = changed(keep, ["<|user|>", "<|end|>"]), changed(keep, [])
    target, draft = (longer, shorter) if is_target_longer else (shorter, longer)
    match = compare_vocabularies(target, draft)
    assert match.is_match
    extra = match.only_in_target if is_target_longer else match.only_in_draft
    assert [entry.token_id for entry in extra] == [len(shorter.vocabulary()), len(shorter.vocabulary()) + 1]
    require_match(target, draft)


def test_a_trained_token_that_one_side_lacks_is_a_mismatch(changed: Callable[..., Tokenizer]) -> None:
    def extend(vocab: dict[str, int]) -> None:
        vocab["zz"] = len(vocab)

    assert not compare_vocabularies(changed(extend, []), changed(keep, [])).is_match


def test_different_added_tokens_under_one_id_are_a_mismatch(changed: Callable[..., Tokenizer]) -> None:
    match = compare_vocabularies(changed(keep, ["<|a|>"]), changed(keep, ["<|b|>"]))
    assert not match.is_match
    assert [(entry.target_token, entry.draft_token) for entry in match.differences] == [("<|a|>", "<|b|>")]


def test_the_error_names_the_first_differing_ids_and_both_tokens(changed: Callable[..., Tokenizer]) -> None:
    target, draft = changed(keep, []), changed(swap, [])
    first = target.vocabulary()["."]
    match = compare_vocabularies(target, draft)
    assert match.differences[0] == TokenDifference(token_id=first, target_token=".", draft_token="!")
    with pytest.raises(VocabularyError) as caught:
        require_match(target, draft, target_name="big", draft_name="small")
    message = str(caught.value)
    assert f"id {first} is '.' in the target, '!' in the draft" in message
    assert "big and small" in message
    assert "prompt_lookup" in message
