"""Encodes text to token ids, in this process or, if the tokenizer's patterns are unknown, in one with limits."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import tokenizers

from forerun.core.errors import ConfigError
from forerun.core.json_file import short
from forerun.wires.bounded_child import BoundedChild, LimitError, Limits

LONG_TEXT: Final = 16_384  # characters, some 10 ms
LIMITS: Final = Limits(max_s=5.0, max_bytes=2**31)  # a vocabulary of 262,000 tokens takes 400 MiB


class LocalEncoder:
    """Encodes in this process."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text.

        Raises:
            ConfigError: the tokenizer failed.
        """
        with faults_told("read this text"):
            return ids_of(self._backend, text, add_special_tokens=add_special_tokens)

    def ids_inside(self, text: str) -> list[int]:
        """The ids of text inside a text: without the space that sentencepiece's tokenizers put before one."""
        with faults_told("read this text"):
            return ids_of(self._inside, text, add_special_tokens=False)

    def to_json(self) -> str:
        """The text of its tokenizer.json."""
        return self._backend.to_str()

    @cached_property
    def _inside(self) -> tokenizers.Tokenizer:
        return without_space(self._backend)


class BoundedEncoder:
    """Encodes in a process with limits, for a normalizer or pre-tokenizer that may take exponential time or memory."""

    def __init__(self, backend: tokenizers.Tokenizer, parts: Mapping[str, object]) -> None:
        """Start the process and have it load the tokenizer.

        Args:
            backend: the tokenizer without these parts.
            parts: the normalizer and the pre-tokenizer as tokenizer.json has them.

        Raises:
            ConfigError: it cannot be loaded.
        """
        self._form = json.dumps({**json.loads(backend.to_str()), **parts})
        self._child = BoundedChild("forerun.text.encoder_child", {"form": self._form})
        self.ids("", add_special_tokens=False)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text.

        Raises:
            ConfigError: the tokenizer failed.
            LimitError: it takes too much time or memory.
        """
        return self._ask({"text": text, "add_special_tokens": add_special_tokens})

    def ids_inside(self, text: str) -> list[int]:
        """The ids of text inside a text: without the space that sentencepiece's tokenizers put before one."""
        return self._ask({"text": text, "is_inside": True, "add_special_tokens": False})

    def to_json(self) -> str:
        """The text of its tokenizer.json."""
        return self._form

    def _ask(self, question: Mapping[str, object]) -> list[int]:
        try:
            found = self._child.ask(question, LIMITS)
        except LimitError as error:
            raise LimitError(
                f"the model's tokenizer takes too much time or memory for this text ({error}): give a shorter text, or "
                "fetch the model from its publisher"
            ) from error
        if "fault" in found:
            raise fault("read this text", found["fault"])
        return list(found["ids"])


def ids_of(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of a text. While a long text is encoded, Python's other threads continue; `encode` would stop them."""
    if len(text) <= LONG_TEXT:
        return backend.encode(text, add_special_tokens=add_special_tokens).ids
    return backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids


def without_space(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, but it puts nothing before a text."""
    form = json.loads(backend.to_str())
    parts = {name: _without_space(form[name]) for name in ("normalizer", "pre_tokenizer")}
    return tokenizers.Tokenizer.from_str(json.dumps(form | parts))


def _without_space(part: Any) -> Any:
    """A normalizer or pre-tokenizer, as tokenizer.json has it, that puts nothing before a text."""
    match part:
        case {"type": "Prepend"}:
            return None
        case {"normalizers": list(parts)} | {"pretokenizers": list(parts)}:
            name = "normalizers" if "normalizers" in part else "pretokenizers"
            return {**part, name: [kept for each in parts if (kept := _without_space(each)) is not None]}
        case {"type": "Metaspace"}:
            return {**part, "prepend_scheme": "never"}
        case {"type": "ByteLevel"}:
            return {**part, "add_prefix_space": False}
        case _:
            return part


@contextmanager
def faults_told(what: str) -> Iterator[None]:
    """Turn every error of a checkpoint's tokenizer into one clear error. A panic in Rust is not an Exception in Python.

    Raises:
        ConfigError: it failed.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise fault(what, str(error)) from error


def fault(what: str, reason: str) -> ConfigError:
    """The error for a tokenizer that failed."""
    return ConfigError(
        f"the model's tokenizer cannot {what} ({short(reason)}): its file is damaged, or of another version of "
        f"tokenizers than {tokenizers.__version__}; fetch the model again"
    )
