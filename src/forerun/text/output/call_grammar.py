"""Grammars of tool calls, in llguidance's Lark."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.core.grammar import Grammar, lark_pattern, lark_text
from forerun.text.output.call_schema import (
    Schema,
    alternatives_of,
    kind_of,
    listed_texts,
    parameters_of,
    properties_of,
    required_of,
    takes_texts,
    values_of,
)
from forerun.text.output.loose_grammar import gemma_arguments, json_value, one_of, pythonic_arguments
from forerun.text.output.tagged_reader import TaggedMarks
from forerun.text.output.traits import CallFormat, TemplateTraits

SPACE: Final = "/[ \\n]{0,4}/"
ANY_TEXT: Final = "/(?s:.*)/"
SPACE_PATTERN: Final = "[ \\n\\r\\t]*"
SPACES: Final = f"/{SPACE_PATTERN}/"
SOME_TEXT: Final = f"/{SPACE_PATTERN}[^ \\n\\r\\t](?s:.*)/"
LINE: Final = "\n"
HARMONY_CALL: Final = ("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "<|call|>")
HARMONY_THOUGHT: Final = ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")


def call_grammar(
    traits: TemplateTraits,
    tools: Sequence[Mapping[str, Any]],
    *,
    choice: str,
    is_parallel: bool,
    added: Mapping[str, int],
    is_thinking: bool = False,
) -> Grammar | None:
    """The grammar of calls of these tools; None if calls are free: without tools, or without a mark that begins a call.

    Args:
        tools: as in OpenAI's API.
        choice: "auto": after the mark of a call, a call must follow. "required": there must be a call. Otherwise the
            name of the tool that must be called.
        is_parallel: whether several calls may follow each other, if the template accepts them in one message.
        added: ids of the vocabulary's added tokens by text. They can only be written as tokens.
        is_thinking: whether the prompt leaves a thought open; then the grammar applies after the thought.
    """
    functions = [tool["function"] for tool in tools if choice in ("auto", "required", tool["function"]["name"])]
    format = traits.call_format
    is_auto = choice == "auto"
    if not functions or (is_auto and not format.begin):
        return None
    lark = Lark(format, added)
    lark.rules["call"] = " | ".join([lark.call_of(number, function) for number, function in enumerate(functions)])
    calls = lark.calls(is_parallel=is_parallel and not traits.wants_single_calls, is_auto=is_auto)
    if is_auto:
        return lark.grammar(calls, trigger=format.begin)
    thought = HARMONY_THOUGHT if format.kind == "harmony" else traits.thought
    if thought is None or is_thinking:
        return lark.grammar(f"{SPACE} {calls}" if is_thinking else calls, after=thought[1] if thought else "")
    lark.rules["thought"] = f"{lark.text(thought[0])} {lark.until(thought[1])} {SPACE}"
    return lark.grammar(f"thought? {calls}")


class Lark:
    """Collects rules of a grammar."""

    def __init__(self, format: CallFormat, added: Mapping[str, int]) -> None:
        self.rules: dict[str, str] = {}
        self._format, self._added = format, added

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

    def calls(self, *, is_parallel: bool, is_auto: bool) -> str:
        """All calls with their marks; after a trigger without the mark that triggered."""
        format = self._format
        if format.kind == "harmony":
            return "call"
        begin = format.call_begin + format.name_begin
        before, after = format.section_begin, format.section_end
        if format.is_list:
            before, after = before + "[", "]" + after
        first = before + begin
        if is_auto:
            first = first[first.index(format.begin) + len(format.begin) :]
        call = "call" if format.kind == "tagged" else f"call {self.text(format.call_end)}"
        more = f" ({self.text(format.separator + begin)} {call})*"
        has_more = is_parallel and (not is_auto or before != "")
        # Many models write a line break between their last call and the end: it must not demand another call.
        end = f" {SPACE}" if has_more and not is_auto else ""
        return f"{self.text(first)} {call}{more if has_more else ''} {self.text(after)}{end}"

    def call_of(self, number: int, function: Mapping[str, Any]) -> str:
        """The name of a rule for a call of this tool, without the marks around calls but for the end of tagged ones."""
        format, name, schema = self._format, function["name"], parameters_of(function)
        match format.kind:
            case "json":
                name_key, said_name, arguments_key = map(as_json, (format.name_key, name, format.arguments_key))
                head = f"{{{name_key}: {said_name}, {arguments_key}: "
                rule = f"{self.text(head)} {json_value(schema, {})} {self.text('}')}"
            case "named":
                number_of = '":" /[0-9]+/' if format.is_numbered else ""
                rule = f"{self.text(name)} {number_of} {self.text(format.name_end)} {json_value(schema, {})}"
            case "harmony":
                begin, middle, end = map(self.text, HARMONY_CALL)
                rule = f"{begin} {self.text(name)} {middle} {json_value(schema, {})} {end}"
            case "tagged":
                tagged = TaggedGrammar(self, format, schema, prefix=f"call_{number}")
                rule = f"{self.text(name + format.name_end)} {tagged.arguments()}"
            case "pythonic":
                rule = f"{self.text(name)} {pythonic_arguments(schema, self.rules)}"
            case "gemma":
                rule = f"{self.text(name)} {gemma_arguments(schema, self.rules, self.text(format.string_mark))}"
        self.rules[f"call_{number}"] = rule
        return f"call_{number}"


class TaggedGrammar:
    """Rules for the arguments of a tagged call and for all that closes it, in the way in which they are read.

    The arguments come in the schema's order; those that are not required are optional. A text stands as it is and may
    hold the format's marks, so its rule includes the marks at which the reader sees its end. Where these are tokens,
    they are rules of their own.
    """

    def __init__(self, lark: Lark, format: CallFormat, schema: Schema, *, prefix: str) -> None:
        self._lark, self._format, self._schema, self._prefix = lark, format, schema, prefix
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
        lark, properties = self._lark, list(properties_of(self._schema).items())
        num, end = len(properties), lark.text(self._format.parameter_end)
        first = self._rule("first", num, lark.text(self._closing))
        later = self._rule("later", num, f"{end} {lark.text(self._closing)}")
        behind_text, within_text = self._rule("behind", num, self._end_of_call()), ""
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
                behind_text, within_text = next_of("behind", bare, behind_text), next_of("within", bare, within_text)
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
        name, strays = f"{self._prefix}_text_{place}", self._strays
        if not self._has_token_marks:
            goes_on = f" | {self._inner(place)} {one_of(strays)} {name}" if strays else ""
            return self._rule("text", place, f"{behind_text}{goes_on}")
        end, ended = self._lark.text(self._marks.end), f"{self._prefix}_ended_{place}"
        goes_on = one_of(filter(None, (within_text, f"{end} {ended}", *(f"{stray} {name}" for stray in strays))))
        self._rule("ended", place, f"{SPACES} ({behind_text} | {end} {ended}) | {SOME_TEXT} {goes_on}")
        return self._rule("text", place, f"{ANY_TEXT} {goes_on}")

    def _text_up_to(self, place: int, key: str) -> str:
        """A text up to the marks of another argument, of which the end mark may be missing."""
        marks, name = self._marks, f"{self._prefix}_to_{place}"
        begin = SPACE_PATTERN.join(map(literal, (marks.begin, key.strip(), *marks.name_end)))
        ended = f"({literal(marks.end)}{SPACE_PATTERN}|{LINE if marks.is_lined else ''})"
        self._lark.rules[f"{name}[lazy]"] = f"{self._free_text(place)} {lark_pattern(ended + begin)}"
        return name

    def _end_of_call(self) -> str:
        """A text up to all that closes the call; without the text if its end mark is a token."""
        lark, properties = self._lark, properties_of(self._schema)
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
        marks, keys, required = self._marks, list(properties_of(self._schema)), required_of(self._schema)
        given = [key for key in keys[:place] if key in required]
        left = [literal(key.strip()) for key in keys if key not in given]
        begin = SPACE_PATTERN.join((literal(marks.begin), f"({'|'.join(left)})", *map(literal, marks.name_end)))
        end, closing = literal(marks.end), SPACE_PATTERN.join(map(literal, marks.closing))
        no_part = [f"{end}{SPACE_PATTERN}({literal(marks.begin)}|{closing})"]
        if left:
            no_part.append((LINE if marks.is_lined else "") + begin)
        rule = f"~({ANY_TEXT} {lark_pattern('|'.join(no_part))} {ANY_TEXT}) & {ANY_TEXT}"
        return self._terminal("FREE", rule, len(given))

    def _terminal(self, kind: str, rule: str, number: int = 0) -> str:
        name = f"{self._prefix}_{kind}_{number}".upper()
        self._lark.rules[name] = rule
        return name


def literal(text: str) -> str:
    """A regular expression for exactly this text."""
    return "".join(letter if letter.isalnum() or letter in "<>_" else f"\\x{{{ord(letter):x}}}" for letter in text)


def as_json(text: str) -> str:
    """The text as JSON in its own letters, as prompts show it."""
    return json.dumps(text, ensure_ascii=False)
