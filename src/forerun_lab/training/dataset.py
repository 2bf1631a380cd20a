"""Text to token windows: one tokenizer, one shuffled stream of training windows, one held-out stream."""

import ast
import json
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from forerun_lab.training.corpus import Document, prose_documents, python_documents

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE, so that every text can be written; id 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=24,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: list[Document]) -> np.ndarray:
    """[N] uint16, the documents one after another, each closed by the end token."""
    end_id = tokenizer.token_to_id(END_OF_TEXT)
    encoded = tokenizer.encode_batch_fast([document.text for document in documents])
    return np.concatenate([np.asarray([*item.ids, end_id], dtype=np.uint16) for item in encoded])


def prepare(folder: Path, prose: Path | None, vocab_size: int, seed: int) -> None:
    """Write tokenizer.json, train.npy, held_out.npy and the held-out prompts into `folder`, once."""
    if (folder / "train.npy").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    documents = list(python_documents())
    if prose:
        documents += list(prose_documents(prose))
    random.Random(seed).shuffle(documents)
    kept = [document for document in documents if not document.is_held_out]
    held_out = [document for document in documents if document.is_held_out]
    sample = kept[:: max(1, len(kept) // 2500)]
    tokenizer = train_tokenizer((document.text for document in sample), vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    np.save(folder / "held_out.npy", encode(tokenizer, held_out))
    (folder / "prompts.jsonl").write_text("".join(held_out_prompts(held_out)))
    np.save(folder / "train.npy", encode(tokenizer, kept))


def held_out_prompts(documents: list[Document], limit: int = 96) -> list[str]:
    """Function headers with docstrings from files never trained on, one JSON line each."""
    lines: list[str] = []
    for document in sorted(documents, key=lambda item: item.name):
        if document.name.endswith(".py"):
            lines += [
                json.dumps(
                    {
                        "question_id": 0,
                        "category": document.name.split("/")[0],
                        "source": document.name,
                        "turns": [text],
                    }
                )
                for text in function_headers(document.text)[:2]
            ]
    random.Random(0).shuffle(lines)
    records = [json.loads(line) for line in lines[:limit]]
    for number, record in enumerate(records):
        record["question_id"] = number
    return [json.dumps(record) + "\n" for record in records]


def function_headers(source: str) -> list[str]:
    """Top-level functions of a file, each cut after its docstring and with a body of some length."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    rows = source.splitlines(keepends=True)
    headers = []
    for node in module.body:
        if not isinstance(node, ast.FunctionDef) or not ast.get_docstring(node) or len(node.body) < 3:
            continue
        last = node.body[0].end_lineno or node.lineno
        # Without the newline: a token of its own there says that no indented line follows.
        text = "".join(rows[node.lineno - 1 : last]).rstrip()
        if 80 <= len(text) <= 700:
            headers.append(text)
    return headers
