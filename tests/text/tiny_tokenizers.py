"""Small tokenizers of the two kinds that matter, written as checkpoint folders: byte-level BPE and Llama's."""

import json
import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SHARED_DATA = Path(os.environ.get("FORERUN_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
TEXT = "Once upon a time there was a little fox. The fox said: naïve café, 你好 🦊!\n\nIt ran away, and away. " * 4
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_byte_level(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """A Qwen-like tokenizer of 300 tokens and three control tokens, in `folder`."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([TEXT], trainer)
    backend.add_special_tokens(list(CONTROL_TOKENS))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    return _write(folder, backend, config | ({"chat_template": chat_template} if chat_template else {}))


def write_llama(folder: Path, **config: object) -> Path:
    """A Llama-like tokenizer: byte fallback, spaces as U+2581, a begin-of-sequence token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [
        "▁",
        "▁the",
        "▁fox",
        "▁and",
        "t",
        "h",
        "e",
        "f",
        "o",
        "x",
        "a",
        "n",
        "d",
        "th",
        "fo",
        "an",
        ".",
        "!",
        "é",
    ]
    merges = [("t", "h"), ("f", "o"), ("a", "n")]
    model = models.BPE(
        {token: id_ for id_, token in enumerate(tokens)}, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return _write(folder, backend, {"tokenizer_class": "PreTrainedTokenizerFast"} | names | config)


def with_tokenizer_file(folder: Path, to: Path) -> Path:
    """The folder, or another one in which transformers wrote the tokenizer.json of its vocab.json and merges.txt."""
    if (folder / "tokenizer.json").exists():
        return folder
    transformers = pytest.importorskip("transformers")
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(to)
    return to


def _write(folder: Path, backend: tokenizers.Tokenizer, config: dict[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
