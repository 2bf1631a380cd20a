"""The tokens that end a text by a folder's tokenizer and chat template, without building the tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from forerun.checkpoints.end_tokens import END_TEXTS
from forerun.checkpoints.huggingface.tokenizer import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_NAME,
    read_chat_template,
    read_special_tokens,
)
from forerun.core.errors import CheckpointError
from forerun.core.json_file import decode, read_bounded

EOS: Final = "eos_token"


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _AddedTokens(msgspec.Struct):
    """Of a tokenizer.json; its vocabulary is skipped."""

    added_tokens: list[_AddedToken] = []


def read_end_tokens(folder: Path) -> tuple[int, ...]:
    """The end token of the tokenizer, and the known end tokens that the chat template writes.

    generation_config.json of many folders names only one of them, for example not the one that ends a turn.

    Raises:
        CheckpointError: a file of the tokenizer is damaged.
    """
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return ()
    ids = {token.content: token.id for token in _added_tokens(path)}
    return tuple(dict.fromkeys(ids[text] for text in _end_texts(folder) if text in ids))


def _end_texts(folder: Path) -> Iterator[str]:
    eos = read_special_tokens(folder).get(EOS)
    template = read_chat_template(folder) or ""
    if eos is not None:
        yield eos
    yield from sorted(text for text in END_TEXTS if text in template)


def _added_tokens(path: Path) -> list[_AddedToken]:
    try:
        return decode(read_bounded(path, MAX_TOKENIZER_BYTES), _AddedTokens).added_tokens
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}): check the file and its permissions") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not a tokenizer.json ({error}): fetch it again") from error
