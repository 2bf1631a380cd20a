"""Keeps what people and tools say from becoming control tokens, such as the mark that ends a turn."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

SEAM: Final = "\ufdd0"  # a noncharacter, which Unicode reserves for a program's own use
REPLACEMENT: Final = "\ufffd"
NOTHING: Final = r"(?!)"


class ControlTokens:
    """The special tokens of a vocabulary.

    Args:
        tokens: their texts.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._begun = re.compile(f"(?s)(?={any_of(tokens).pattern}).")

    def parted(self, said: Any) -> Any:
        """The values of a message, with a seam in every text after the first character of anything that looks like a
        control token. If the text is encoded in parts divided at the seams, no control token remains.
        """
        match said:
            case str():
                return self._begun.sub(rf"\g<0>{SEAM}", said.replace(SEAM, REPLACEMENT))
            case Mapping():
                return {self.parted(key): self.parted(value) for key, value in said.items()}
            case list() | tuple():
                return [self.parted(value) for value in said]
            case _:
                return said


def any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """A pattern that matches any of these texts."""
    return re.compile(f"(?:{'|'.join(map(re.escape, texts))})" if texts else NOTHING)
