"""Grammars of the arguments of tagged calls, in llguidance's Lark."""

from typing import Final

from forerun.core.grammar import lark_pattern, lark_text
from forerun.text.output.call_schema import (
    Schema,
    alternatives_of,
    kind_of,
    listed_texts,
    properties_of,
    required_of,
    takes_texts,
    values_of,
)
from forerun.text.output.lark import ANY_TEXT, Lark, literal
from forerun.text.output.loose_grammar import json_value, one_of
from forerun.text.output.tagged_reader import TaggedMarks
from forerun.text.output.traits import CallFormat

SPACE_PATTERN: Final = "[ \\n\\r\\t]*"
SPACES: Final = f"/{SPACE_PATTERN}/"
SOME_TEXT: Final = f"/{SPACE_PATTERN}[^ \\n\\r\\t](?s:.*)/"
LINE: Final = "\n"


class TaggedGrammar:
    """Rules for the arguments of a tagged call and for all that closes it, in the way in which they are read.

    The arguments come in the schema's order; those that are not required are optional. A text stands as it is and may
    hold the format's marks, so its rule includes the marks at which the reader sees its end. Where these are tokens,
    they are rules of their own.
    """

    def __init__(self, lark: Lark, format: CallFormat, schema: Schema, *, prefix: str) -> None:
        self._lark = lark
        self._format = format
        self._schema = schema
        self._prefix = prefix
        self._marks = TaggedMarks.of(format)
        self._line = "\n" if format.parameter_name_end.endswith("\n") else ""
        self._name_end = format.parameter_name_end.removesuffix("\n")  # models may leave out this line break
        self._closing = format.arguments_end + format.call_end
        marks = (self._marks.begin, self._marks.end, self._closing.strip())
        self._has_token_marks = all(map(lark.begins_with_added, marks))
        self._has_end_token = lark.begins_with_added(self._marks.end)
        strays = (mark for mark in (format.call_begin.strip(), format.call_end.strip()) if lark.begins_with_added(mark))
        self._strays = [lark.text(mark) for mark in dict.fromkeys(strays)]  # tokens that a text may hold

    def arguments(self) -> str:
        """The rule of all arguments and of what closes the call."""
        lark = self._lark
        properties = list(properties_of(self._schema).items())
        num = len(properties)
        end = lark.text(self._format.parameter_end)
        first = self._rule("first", num, lark.text(self._closing))
        later = self._rule("later", num, f"{end} {lark.text(self._closing)}")
        behind_text = self._rule("behind", num, self._end_of_call())
        within_text = ""
        for place, (key, said) in reversed([*enumerate(properties)]):
            value = self._value(place, said, later, behind_text, within_text)
            is_required = key in required_of(self._schema)

            def next_of(kind: str, marks: str, others: str) -> str:
                more = "" if is_required or not others else f" | {others}"  # noqa: B023 - called in this turn
                return self._rule(kind, place, f"{marks} {value}{more}")  # noqa: B023

            begin = lark.text(f"{self._format.parameter_begin}{key}{self._name_end}")
            bare = lark.text(f"{self._marks.begin}{key}{self._name_end}")
            forgotten = f"{lark_text(LINE)} {bare}" if self._marks.is_lined else bare
            first = next_of("first", begin, first)
            later = next_of("later", f"({end} {begin} | {forgotten})", later)
            if self._has_token_marks:
                behind_text = next_of("behind", bare, behind_text)
                within_text = next_of("within", bare, within_text)
            else:
                up_to = begin if self._has_end_token else self._text_up_to(place, key)
                behind_text = next_of("behind", up_to, behind_text)
        return first

    def _rule(self, kind: str, place: int, rule: str) -> str:
        name = f"{self._prefix}_{kind}_{place}"
        self._lark.rules[name] = rule
        return name

    def _value(self, place: int, said: Schema, later: str, behind_text: str, within_text: str) -> str:
        """A value and all that follows it."""
        alternatives = alternatives_of(said, self._schema)
        if any(map(takes_texts, alternatives)):
            if self._has_end_token and not self._has_token_marks:  # rare: such a text holds no end marks
                end = self._lark.text(self._marks.end)
                return self._rule("value", place, f"{self._free_text(place + 1)} {end} {behind_text}")
            return self._text(place, behind_text, within_text)
        texts = [text for one in alternatives for text in listed_texts(one)]
        others = [json_value(said, self._schema)]
        if texts:
            others = [*map(self._lark.text, texts), *filter(None, map(self._json_value, alternatives))]
        line = f"{lark_text(self._line)}? " if self._line else ""
        return self._rule("value", place, f"{line}{one_of(others)} {later}")

    def _json_value(self, said: Schema) -> str:
        """JSON for the values of a schema that are no texts; "" if it has only texts."""
        if listed := values_of(said):
            others = [value for value in listed if kind_of(value) != "string"]
            return json_value({"enum": others}, {}) if others else ""
        return json_value(said, self._schema)

    def _text(self, place: int, behind_text: str, within_text: str) -> str:
        """Any text and all that follows it.

        Args:
            behind_text: what follows a text, or an end mark if the marks are tokens.
            within_text: what follows a text without its end mark if the marks are tokens; "" if nothing can.
        """
        name = f"{self._prefix}_text_{place}"
        strays = self._strays
        if not self._has_token_marks:
            goes_on = f" | {self._inner(place)} {one_of(strays)} {name}" if strays else ""
            return self._rule("text", place, f"{behind_text}{goes_on}")
        end = self._lark.text(self._marks.end)
        ended = f"{self._prefix}_ended_{place}"
        goes_on = one_of(filter(None, (within_text, f"{end} {ended}", *(f"{stray} {name}" for stray in strays))))
        self._rule("ended", place, f"{SPACES} ({behind_text} | {end} {ended}) | {SOME_TEXT} {goes_on}")
        return self._rule("text", place, f"{ANY_TEXT} {goes_on}")

    def _text_up_to(self, place: int, key: str) -> str:
        """A text up to the marks of another argument, of which the end mark may be missing."""
        marks = self._marks
        name = f"{self._prefix}_to_{place}"
        begin = SPACE_PATTERN.join(map(literal, (marks.begin, key.strip(), *marks.name_end)))
        ended = f"({literal(marks.end)}{SPACE_PATTERN}|{LINE if marks.is_lined else ''})"
        self._lark.rules[f"{name}[lazy]"] = f"{self._free_text(place)} {lark_pattern(ended + begin)}"
        return name

    def _end_of_call(self) -> str:
        """A text up to all that closes the call; without the text if its end mark is a token."""
        lark = self._lark
        properties = properties_of(self._schema)
        if self._has_end_token:
            return lark.text(self._closing.strip() if self._has_token_marks else self._closing)
        end, tokens = self._end_before_tokens()
        free = self._free_text(len(properties))
        if tokens:
            return f"{self._terminal('ENDING', f'{free} {end}')} {tokens}"
        name = f"{self._prefix}_to_end"
        lark.rules[f"{name}[lazy]"] = f"{free} {end}"
        return name

    def _inner(self, place: int) -> str:
        """A text of this argument up to a token that does not close the call."""
        end, tokens = self._end_before_tokens()
        free = self._free_text(place + 1)
        return self._terminal("INNER", f"{free} & ~({ANY_TEXT} {end})" if tokens else free, place)

    def _end_before_tokens(self) -> tuple[str, str]:
        """What closes the call behind a text: a pattern up to the first token, and the rest."""
        closing = self._marks.closing
        is_token = [self._lark.begins_with_added(mark) for mark in closing]
        num = is_token.index(True) if True in is_token else len(closing)
        pattern = SPACE_PATTERN.join(map(literal, (self._marks.end, *closing[:num])))
        if num < len(closing):
            pattern += SPACE_PATTERN
        return lark_pattern(pattern), " ".join(map(self._lark.text, closing[num:]))

    def _free_text(self, place: int) -> str:
        """Texts before the argument at this place without anything in them that the reader would take for their end:
        an end mark and what follows it, or the beginning of an argument that may not have been given yet."""
        marks = self._marks
        keys = list(properties_of(self._schema))
        required = required_of(self._schema)
        given = [key for key in keys[:place] if key in required]
        left = [literal(key.strip()) for key in keys if key not in given]
        begin = SPACE_PATTERN.join((literal(marks.begin), f"({'|'.join(left)})", *map(literal, marks.name_end)))
        end = literal(marks.end)
        closing = SPACE_PATTERN.join(map(literal, marks.closing))
        no_part = [f"{end}{SPACE_PATTERN}({literal(marks.begin)}|{closing})"]
        if left:
            no_part.append((LINE if marks.is_lined else "") + begin)
        rule = f"~({ANY_TEXT} {lark_pattern('|'.join(no_part))} {ANY_TEXT}) & {ANY_TEXT}"
        return self._terminal("FREE", rule, len(given))

    def _terminal(self, kind: str, rule: str, number: int = 0) -> str:
        name = f"{self._prefix}_{kind}_{number}".upper()
        self._lark.rules[name] = rule
        return name
