"""What published folders do wrong or leave out, and what is made of it."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from forerun.checkpoints.huggingface.folder import HuggingFaceFolder
from forerun.checkpoints.huggingface.stored_tensors import catalogue
from forerun.core.errors import CheckpointError
from forerun.engine.model_loading import require_rows
from tests.checkpoints.folders import (
    INDEX,
    LLAMA,
    SINGLE,
    random_tensors,
    write_config,
    write_json,
    write_shards,
    write_single,
)

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def folder_of(path: Path) -> HuggingFaceFolder:
    return HuggingFaceFolder(name=str(path), folder=path)


def write_tokenizer(folder: Path, *, num_tokens: int, added: dict[str, int], config: dict[str, Any]) -> None:
    backend = Tokenizer(models.BPE(vocab={f"t{token}": token for token in range(num_tokens)}, merges=[]))
    values = json.loads(backend.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    values["added_tokens"] = [{"id": token, "content": text, **flags} for text, token in added.items()]
    write_json(folder / "tokenizer.json", values)
    write_json(folder / "tokenizer_config.json", config)


def test_the_tokenizers_and_the_templates_end_tokens_join_those_of_the_generation_config(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 7})
    added = {"</s>": 8, "<|im_end|>": 9, "<|eot_id|>": 10}
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    write_tokenizer(tmp_path, num_tokens=8, added=added, config={"eos_token": "</s>", "chat_template": template})
    assert folder_of(tmp_path).stop_ids() == (7, 8, 9), "<|eot_id|> is in the vocabulary, but ends no turn here"


def test_an_index_counts_and_a_stray_single_file_does_not(tmp_path: Path) -> None:
    write_shards(tmp_path, random_tensors())
    save_file(random_tensors(seed=1), tmp_path / SINGLE)
    assert SINGLE not in {tensor.path.name for tensor in catalogue(tmp_path).values()}


def test_an_index_of_absent_files_does_not_hide_a_single_file(tmp_path: Path) -> None:
    write_single(tmp_path, random_tensors())
    write_json(tmp_path / INDEX, {"weight_map": {HEAD: "model-00001-of-00002.safetensors"}})
    assert {tensor.path.name for tensor in catalogue(tmp_path).values()} == {SINGLE}


def test_a_tied_model_with_a_head_of_its_own_is_not_tied_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_single(tmp_path, random_tensors(), tie_word_embeddings=True)
    with caplog.at_level(logging.WARNING):
        spec = folder_of(tmp_path).spec()
    assert not spec.tied_embeddings
    assert "a head that differs from the embedding" in caplog.text
    head, _ = folder_of(tmp_path).weights(dtype=torch.float32).linear("head")
    assert torch.equal(head.values_OI, load_file(tmp_path / SINGLE)[HEAD])  # type: ignore[union-attr]


def test_a_tied_model_with_a_copy_of_the_embedding_is_tied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = random_tensors()
    write_single(tmp_path, {**tensors, HEAD: tensors[EMBEDDING].clone()}, tie_word_embeddings=True)
    assert folder_of(tmp_path).spec().tied_embeddings
    assert not caplog.records


def test_tokens_beyond_the_embedding_are_refused_unless_they_are_added_ones(tmp_path: Path) -> None:
    write_config(tmp_path)
    spec = folder_of(tmp_path).spec()
    write_tokenizer(tmp_path, num_tokens=spec.vocab_size, added={"<image>": spec.vocab_size}, config={})
    require_rows(folder_of(tmp_path).tokenizer(), spec, "m")
    write_tokenizer(tmp_path, num_tokens=spec.vocab_size + 1, added={}, config={})
    with pytest.raises(CheckpointError, match=r"has 17 tokens, but its embedding has 16 rows"):
        require_rows(folder_of(tmp_path).tokenizer(), spec, "m")


def test_an_end_of_text_id_beyond_the_vocabulary_is_refused_by_name(tmp_path: Path) -> None:
    write_config(tmp_path, eos_token_id=[2, 15])
    assert folder_of(tmp_path).stop_ids() == (2, 15)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": [2, 16]})
    with pytest.raises(CheckpointError, match=r"eos_token_id: the end-of-text id 16 is beyond the model's 16 tokens"):
        folder_of(tmp_path).stop_ids()


def test_a_padded_vocabulary_is_read(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_tokenizer(tmp_path, num_tokens=11, added={}, config={})
    require_rows(folder_of(tmp_path).tokenizer(), folder_of(tmp_path).spec(), "m")


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
@pytest.mark.parametrize(("inner", "outer"), [(True, None), (True, False), (False, True), (None, True)])
def test_the_inner_flags_of_a_wrapper_count(
    tmp_path: Path, prefix: str, inner: bool | None, outer: bool | None
) -> None:
    text = {**LLAMA, "model_type": "ministral3", "head_dim": 2, "tie_word_embeddings": inner, "eos_token_id": 3}
    config = {"model_type": "mistral3", "vision_config": {}, "text_config": text, "tie_word_embeddings": outer}
    write_json(tmp_path / "config.json", {key: value for key, value in config.items() if value is not None})
    is_tied = bool(outer if inner is None else inner)
    tensors = {name.replace("model.", prefix, 1): tensor for name, tensor in random_tensors().items() if name != HEAD}
    tensors["vision_tower.patch.weight"] = torch.zeros(2, 2)
    if not is_tied:
        tensors["language_model.lm_head.weight"] = random_tensors()[HEAD]
    save_file(tensors, tmp_path / SINGLE)
    assert folder_of(tmp_path).spec().tied_embeddings == is_tied
    assert folder_of(tmp_path).stop_ids() == (3,)
    weights = folder_of(tmp_path).weights(dtype=torch.float32)
    assert torch.equal(weights.table().values_OI, random_tensors()[EMBEDDING])  # type: ignore[union-attr]
