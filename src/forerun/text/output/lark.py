"""Collects rules in llguidance's Lark, in which added tokens are written as tokens."""

import re
from collections.abc import Mapping
from typing import Final

from forerun.core.grammar import Grammar, lark_pattern, lark_text

ANY_TEXT: Final = "/(?s:.*)/"


class Lark:
    """Collects rules of a grammar.

    Args:
        added: ids of the vocabulary's added tokens by text. They can only be written as tokens.
    """

    def __init__(self, added: Mapping[str, int]) -> None:
        self.rules: dict[str, str] = {}
        self._added = added

    def grammar(self, start: str, *, after: str = "", trigger: str = "") -> Grammar:
        """The whole grammar."""
        rules = {"start": start, **self.rules}
        text = "\n".join(f"{name}: {rule}" for name, rule in rules.items())
        return Grammar(kind="lark", text=text, after=after, trigger=trigger)

    def text(self, text: str) -> str:
        """Exactly this text, with added tokens as tokens."""
        found = sorted((token for token in self._added if token and token in text), key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, found))})", text) if found else [text]
        return (
            " ".join(f"<[{self._added[part]}]>" if part in self._added else lark_text(part) for part in parts if part)
            or '""'
        )

    def until(self, end: str) -> str:
        """Any text up to an end mark, and the mark."""
        if self.begins_with_added(end.strip()):
            return f"{ANY_TEXT} {self.text(end.strip())}"
        name = f"text_{len(self.rules)}"
        self.rules[f"{name}[lazy]"] = lark_pattern(f"(?s:.*){literal(end)}")
        return name

    def begins_with_added(self, text: str) -> bool:
        """Whether the text begins with a token that can only be written as one."""
        return any(token and text.startswith(token) for token in self._added)


def literal(text: str) -> str:
    """A regular expression for exactly this text."""
    return "".join(letter if letter.isalnum() or letter in "<>_" else f"\\x{{{ord(letter):x}}}" for letter in text)
