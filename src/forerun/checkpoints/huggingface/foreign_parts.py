"""Which parts of a tokenizer.json may take exponential time or memory, so that only a process with limits runs them.

A pattern may backtrack, and a chain of replacements may double a text at every step. Known parts are linear: the kinds
named here, at most 16 of them, with the patterns of known families. All others are foreign.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from forerun.checkpoints.huggingface.split_patterns import GPT2, LLAMA3, O200K, QWEN2, QWEN35, SEED_CODER, TEKKEN
from forerun.core.errors import CheckpointError
from forerun.core.json_file import decode, short

MAX_PARTS: Final = 16
PLAIN_KINDS: Final = frozenset(
    {
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Lowercase",
        "Prepend",
        "Strip",
        "StripAccents",
        "Digits",
        "Metaspace",
        "Whitespace",
        "WhitespaceSplit",
        "Punctuation",
    }
)
KNOWN_PATTERNS: Final = frozenset({
    GPT2, LLAMA3, O200K, QWEN2, QWEN35, SEED_CODER, TEKKEN, r"[\r\n]", r"[0-9][0-9][0-9]"
})  # fmt: skip
# One set of characters, once or repeated, as DeepSeek's and Gemma's files have them.
ONE_SET: Final = re.compile(r"(\\s\?)?(\\p\{\w+\}|\[[^\[\]\\&]+\])(\{1,\d\}|\+)?")


class _Model(msgspec.Struct):
    type: Any = None


class _Parts(msgspec.Struct):
    """Of a tokenizer.json; its vocabulary is skipped."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None
    model: _Model | None = None


def foreign_parts(raw: bytes, name: str) -> Mapping[str, object]:
    """The normalizer and the pre-tokenizer if either is foreign, else nothing.

    Args:
        name: of the file, for error messages.

    Raises:
        CheckpointError: it is not JSON, or its decoder is foreign: text is decoded token by token, in this process.
    """
    try:
        parts = decode(raw, _Parts)
    except ValueError as error:
        raise CheckpointError(f"{name} is not a tokenizer.json ({error}): fetch it again") from error
    decoding = list(_each(parts.decoder, "decoders"))
    if len(decoding) > MAX_PARTS or any(_kind(part) == "Replace" and not _is_short_replace(part) for part in decoding):
        raise CheckpointError(
            f"{name} decodes tokens by patterns or growing replacements ({short(parts.decoder)}), which may take "
            "exponential time: forerun reads only tokenizers that decode by plain replacements"
        )
    encoding = [*_each(parts.normalizer, "normalizers"), *_each(parts.pre_tokenizer, "pretokenizers")]
    num_byte_levels = sum(_kind(part) == "ByteLevel" for part in encoding)
    is_known = parts.model is not None and parts.model.type == "BPE" and len(encoding) <= MAX_PARTS
    if is_known and num_byte_levels <= 1 and all(map(_is_known, encoding)):
        return {}
    return {"normalizer": parts.normalizer, "pre_tokenizer": parts.pre_tokenizer}


def _each(part: Any, key: str) -> Iterator[Any]:
    """The parts of a sequence, or the part itself; nothing for null."""
    match part:
        case None:
            return
        case {"type": "Sequence"}:
            parts = part.get(key)
            yield from parts if isinstance(parts, list) else [part]
        case _:
            yield part


def _is_known(part: Any) -> bool:
    match part:
        case {"type": "Replace"}:
            return _is_short_replace(part)
        case {"type": "Split", "pattern": {"Regex": str(pattern)}}:
            return pattern in KNOWN_PATTERNS or ONE_SET.fullmatch(pattern) is not None
        case {"type": "Split", "pattern": {"String": str()}} | {"type": "ByteLevel"}:
            return True
        case _:
            return _kind(part) in PLAIN_KINDS


def _is_short_replace(part: Any) -> bool:
    match part:
        case {"pattern": {"String": str(pattern)}, "content": str(content)}:
            return len(content) <= len(pattern)
        case _:
            return False


def _kind(part: Any) -> str | None:
    match part:
        case {"type": str(kind)}:
            return kind
        case _:
            return None
