"""Published vocabularies as GGUF files, against their own tokenizer.json and llama.cpp's texts with their ids."""

from pathlib import Path
from typing import Final

import pytest
import tokenizers

from forerun.checkpoints.gguf.tokenizer import read_tokenizer
from forerun.text.tokenizer import Tokenizer
from tests.checkpoints.gguf.texts import TEXTS
from tests.checkpoints.gguf.vocabulary_metadata import gguf_of, metadata_of
from tests.text.tiny_tokenizers import SHARED_DATA, with_tokenizer_file

FOLDER: Final = SHARED_DATA / "tokenizers"
# Folder, splitting (None: sentencepiece's BPE), and the vectors that llama.cpp has for these tokens.
PUBLISHED: Final = {
    "qwen2.5": ("qwen2", "qwen2"),
    "deepseek-r1-distill-qwen": ("deepseek-r1-qwen", "deepseek-r1-qwen"),
    "phi-3_llama2-vocab": (None, "llama-spm"),
}
MARK: Final = "\n__ggml_vocab_test__\n"


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Tokenizer]:
    """The vectors' name, tokenizer.json, and the tokenizer read from metadata alone."""
    name: str = request.param
    if not (FOLDER / name).is_dir():
        pytest.skip(f"{name} is not on this machine; FORERUN_SHARED_DATA may name the folder that holds it")
    file = with_tokenizer_file(FOLDER / name, tmp_path_factory.mktemp(name)) / "tokenizer.json"
    pre, vectors = PUBLISHED[name]
    return vectors, file, read_tokenizer(gguf_of(metadata_of(file, pre=pre, num_rows=152_064 if pre else 32_064)))


def vectors_of(name: str) -> tuple[list[str], list[list[int]]]:
    """Texts and their ids."""
    files = FOLDER / "test_vectors"
    texts = (files / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().removesuffix(MARK).split(MARK)
    lines = (files / f"ggml-vocab-{name}.gguf.out").read_text().splitlines()
    return texts, [[int(id_) for id_ in line.split()] for line in lines]


def test_all_of_llama_cpps_vectors_are_met(published: tuple[str, Path, Tokenizer]) -> None:
    texts, expected = vectors_of(published[0])
    assert len(texts) == len(expected) == 46
    assert [published[2].encode(text, add_special_tokens=False) for text in texts] == expected


def test_ids_and_texts_are_those_of_the_models_own_file(published: tuple[str, Path, Tokenizer]) -> None:
    vectors, file, ours = published
    theirs = tokenizers.Tokenizer.from_file(str(file))
    for text in (*TEXTS, *vectors_of(vectors)[0]):
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocabulary() == theirs.get_vocab(with_added_tokens=True)
    assert ours.added_ids == frozenset(theirs.get_added_tokens_decoder())
