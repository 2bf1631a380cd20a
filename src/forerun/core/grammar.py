"""The form that an answer must have: a JSON schema, a regular expression, or a grammar."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from forerun.core.errors import require

IN_LARK: Final = {"/": "\\/", "\n": "\\n"}  # what cannot stand in a pattern between slashes
GrammarKind: TypeAlias = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A set of allowed texts. Where it applies, only tokens that keep the text allowed can be chosen.

    Args:
        kind: the language that `text` is written in: a JSON schema, a regular expression, or llguidance's Lark.
        after: a mark, such as "</think>": the grammar applies only after its first occurrence. "": from the start.
        trigger: a mark, such as "<tool_call>": the text is free, except that the grammar applies after every occurrence
            until it is complete. If one token ends the mark and continues with text that the grammar does not allow,
            the text stays free. "": the grammar applies once, and the answer ends where it is complete.
    """

    kind: GrammarKind
    text: str
    after: str = ""
    trigger: str = ""

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str) -> "Grammar":
        """JSON values that a schema describes, given as a value or as JSON text."""
        return cls(kind="json_schema", text=schema if isinstance(schema, str) else json.dumps(schema))

    @classmethod
    def json_object(cls) -> "Grammar":
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Texts that the whole pattern matches."""
        return cls(kind="regex", text=pattern)

    @classmethod
    def lark(cls, text: str) -> "Grammar":
        """A context-free grammar in llguidance's variant of Lark; its first rule is `start`."""
        return cls(kind="lark", text=text)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> "Grammar":
        """One of these texts."""
        require(len(texts) > 0, "a choice needs at least one text")
        return cls.lark("start: " + " | ".join(map(lark_text, texts)))


def lark_text(text: str) -> str:
    """Exactly this text, in Lark."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # Lark's texts have no control characters


def lark_pattern(pattern: str) -> str:
    """A regular expression, in Lark: between slashes, so that a slash in it needs a backslash, which it may have."""
    inner = re.sub(r"\\?[/\n]|\\.", lambda found: IN_LARK.get(found[0][-1], found[0]), pattern)
    return f"/{inner or '(?:)'}/"
