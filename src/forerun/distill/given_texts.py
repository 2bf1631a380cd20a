"""Texts that the target did not write, read from files: plain texts in pieces, conversations from JSON lines."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from forerun.core.errors import ConfigError
from forerun.text.chat_template import plain_message
from forerun.text.tokenizer import Tokenizer

PIECE: Final = 384  # tokens of a piece
GivenText: TypeAlias = tuple[list[int], int]  # token ids, and how many of them are the opening


def read_given(path: Path, tokenizer: Tokenizer, stop_ids: Sequence[int], longest: int) -> list[GivenText]:
    """The texts of a file. Each line of a .jsonl file is a conversation, `{"messages": [{"role": ..., "content": ...},
    ...]}`, and only its last message is learnt from. The text of any other file is split into pieces.

    Args:
        longest: the most tokens that the target can read; longer conversations are left out.

    Raises:
        ConfigError: the file cannot be read, or a line is not such a conversation.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text ({error}): give a UTF-8 file") from error
    if path.suffix == ".jsonl":
        return [
            found
            for number, line in enumerate(text.split("\n"), 1)  # a text may hold other line ends
            if line.strip()
            for found in _conversation(f"{path}, line {number}", line, tokenizer, stop_ids)
            if len(found[0]) <= longest
        ]
    ids, size = tokenizer.encode(text), min(PIECE, longest)
    return [(ids[start : start + size], 0) for start in range(0, len(ids), size)]


def _conversation(place: str, line: str, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> Iterator[GivenText]:
    try:
        messages = json.loads(line)["messages"]
        *before, last = messages
        answer, role = plain_message(last)["content"], last["role"]
    except (ValueError, TypeError, KeyError, RecursionError, ConfigError) as error:
        raise ConfigError(
            f'{place} is no conversation ({error!r}); a line such as {{"messages": [{{"role": "user", '
            '"content": "Hi"}, {"role": "assistant", "content": "Hello!"}]} is needed'
        ) from None
    if role != "assistant" or not before:
        raise ConfigError(f"{place}: the last message is a {role!r}'s, an assistant's answer is needed to learn from")
    try:
        opening = tokenizer.apply_chat_template(before)
        ids = [*opening, *tokenizer.encode(answer, add_special_tokens=False), *stop_ids[:1]]
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    if len(opening) < PIECE:
        yield ids[: len(opening) + PIECE], len(opening)
