"""Finds an incomplete character at the end of a text, since a token can end within a character."""

import re
from typing import Final

# Beginnings of characters in UTF-8 (the Unicode Standard, table 3-7). Python's own incremental decoder also waits for
# more after the first two bytes of a surrogate, which is not a character.
UNFINISHED: Final = re.compile(
    rb"(?:[\xC2-\xDF]|\xE0[\xA0-\xBF]?|[\xE1-\xEC\xEE\xEF][\x80-\xBF]?|\xED[\x80-\x9F]?"
    rb"|\xF0(?:[\x90-\xBF][\x80-\xBF]?)?|[\xF1-\xF3][\x80-\xBF]{0,2}|\xF4(?:[\x80-\x8F][\x80-\xBF]?)?)\Z"
)
PLAIN: Final = frozenset((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)))
OTHERS: Final = tuple(byte for byte in range(256) if byte not in PLAIN)
# Byte-level tokens write each byte as a letter (GPT-2's alphabet): bytes that Latin-1 shows as that character, the
# others as U+0100 and on, in their order.
BYTE_OF_LETTER: Final = {chr(byte): byte for byte in PLAIN} | {chr(256 + n): byte for n, byte in enumerate(OTHERS)}


def num_unfinished_bytes(text: bytes) -> int:
    """Number of bytes at the end of a UTF-8 text that begin a character without completing it."""
    found = UNFINISHED.search(text)
    return 0 if found is None else len(found[0])
