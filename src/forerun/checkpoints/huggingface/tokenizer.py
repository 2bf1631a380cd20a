"""Read a checkpoint's tokenizer and chat template, as transformers 5 does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from forerun.checkpoints.huggingface.config import CONFIG_NAME
from forerun.checkpoints.huggingface.foreign_parts import foreign_parts
from forerun.core.errors import CheckpointError
from forerun.core.json_file import MAX_JSON_BYTES, JsonFile, read_bounded, short
from forerun.text.chat_template import TEMPLATE_FILE
from forerun.text.tokenizer import Tokenizer

MAX_CONFIG_BYTES: Final = 2**23  # audio models with 28,000 added tokens list them in 5 MiB
MAX_TOKENIZER_BYTES: Final = 2**26  # 262,000 tokens take 33 MiB
TOKENIZER_NAME: Final = "tokenizer.json"
TOKENIZER_CONFIG_NAME: Final = "tokenizer_config.json"
SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder, with its chat template.

    A begin-of-sequence token comes only from the post-processor in tokenizer.json. `add_bos_token` in
    tokenizer_config.json is not read, because transformers 5 does not read it next to a tokenizer.json either.

    Raises:
        CheckpointError: a file of the tokenizer is missing or damaged.
    """
    special_tokens = read_special_tokens(folder)
    backend, foreign = read_backend(folder)
    backend.add_special_tokens([token for token in special_tokens.values() if backend.token_to_id(token) is None])
    return Tokenizer(backend, read_chat_template(folder), special_tokens, foreign)


def read_optional(path: Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> Mapping[str, object]:
    """The object in a JSON file of a tokenizer, empty when there is no such file."""
    return JsonFile.read(path, max_bytes=max_bytes).values if path.exists() else {}


def read_special_tokens(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and similar tokens by name; absent ones are left out."""
    values = {**read_optional(folder / "special_tokens_map.json"), **read_optional(folder / TOKENIZER_CONFIG_NAME)}
    contents = {name: _content(values.get(name)) for name in SPECIAL_NAMES}
    return {name: require_text(content, folder, name) for name, content in contents.items() if content is not None}


def require_text(text: str, folder: Path, name: str) -> str:
    """Return the text; refuse lone surrogates, which JSON can hold but no tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(
            f"{folder}: the tokenizer's {name} is not valid text ({error.reason}): fetch the file again"
        ) from error
    return text


def read_backend(folder: Path) -> tuple[tokenizers.Tokenizer, Mapping[str, object]]:
    """The tokenizer in tokenizer.json, without truncation, padding and foreign parts; and its foreign parts.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        raise CheckpointError(
            f"{path} does not exist, and forerun reads no other tokenizer file. If the folder has vocab.json or "
            "tokenizer.model, AutoTokenizer.from_pretrained(folder).save_pretrained(folder) in transformers writes it"
        )
    try:
        raw = read_bounded(path, MAX_TOKENIZER_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): check the file and its permissions") from error
    backend, foreign = parse_backend(raw, str(path))
    if _is_read_as_llama(folder) and "ByteLevel" not in f"{backend.pre_tokenizer}{foreign.get('pre_tokenizer')}":
        _read_as_llama(backend, folder)
        foreign = {}
    return backend, foreign


def parse_backend(raw: bytes, name: str) -> tuple[tokenizers.Tokenizer, Mapping[str, object]]:
    """Parse a file of tokenizers, without truncation, padding and foreign parts; return the foreign parts too.

    Dropout is for training: it would give a text other tokens each time.

    Args:
        name: of the file, for error messages.

    Raises:
        CheckpointError: it is damaged.
    """
    foreign = foreign_parts(raw, name)
    try:
        if foreign:
            raw = json.dumps({**json.loads(raw), **dict.fromkeys(foreign)}).encode()
        backend = tokenizers.Tokenizer.from_buffer(raw)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # a bare Exception for an invalid file; a panic in Rust is a BaseException
        version = tokenizers.__version__
        fault = short(str(error))
        raise CheckpointError(f"{name} cannot be read by tokenizers {version} ({fault}): fetch it again") from error
    backend.no_truncation()
    backend.no_padding()
    if isinstance(backend.model, models.BPE):
        backend.model.dropout = None
    return backend, foreign


def read_chat_template(folder: Path) -> str | None:
    """The folder's default template, or None. chat_template.jinja takes precedence over tokenizer_config.json."""
    file = folder / TEMPLATE_FILE
    if file.is_file():
        return _read_source(file)
    source = read_optional(folder / TOKENIZER_CONFIG_NAME).get("chat_template")
    if isinstance(source, list):
        source = _default_of(source, folder)
    return None if source is None else require_text(str(source), folder, "chat_template")


def _read_source(file: Path) -> str:
    try:
        return read_bounded(file, MAX_JSON_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} cannot be read as UTF-8 ({error}): fetch it again") from error


def _default_of(entries: list[Any], folder: Path) -> str:
    """The template called default among entries of the form {"name": ..., "template": ...}."""
    named = {str(entry.get("name")): str(entry.get("template")) for entry in entries if isinstance(entry, dict)}
    if "default" not in named:
        raise CheckpointError(
            f"{folder} has the chat templates {sorted(named)}, but none called 'default': "
            f"write the one to use to {TEMPLATE_FILE}"
        )
    return named["default"]


def _content(value: object) -> str | None:
    """The text of a token, which is written as a string or as an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _is_read_as_llama(folder: Path) -> bool:
    config = read_optional(folder / TOKENIZER_CONFIG_NAME)
    is_llama_class = str(config.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    model = read_optional(folder / CONFIG_NAME, max_bytes=MAX_JSON_BYTES).get("model_type", "llama")
    return is_llama_class and model == "llama"


def _read_as_llama(backend: tokenizers.Tokenizer, folder: Path) -> None:
    """Give a sentencepiece Llama tokenizer the pre-tokenizer and the decoder that transformers 5 gives it.

    They differ in two points: whether text after a special token gets a leading space, and whether decoding drops one.
    The file's normalizer always adds a space. transformers adds one only if `legacy` is set, and only for the class
    LlamaTokenizer with model type llama. It drops a space if it adds one.
    """
    config = read_optional(folder / TOKENIZER_CONFIG_NAME)
    adds_space = config.get("add_prefix_space") is not False
    scheme = ("always" if config.get("legacy") else "first") if adds_space else "never"
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
