"""Grammars of tool calls, in llguidance's Lark."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.core.grammar import Grammar
from forerun.text.output.call_schema import Schema, is_text, parameters_of, properties_of, required_of, values_of
from forerun.text.output.loose_grammar import gemma_arguments, json_value, pythonic_arguments
from forerun.text.output.traits import CallFormat, TemplateTraits

SPACE: Final = "/[ \\n]{0,4}/"
ANY_TEXT: Final = "/(?s:.*)/"
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
            " ".join(f"<[{self._added[part]}]>" if part in self._added else _quoted(part) for part in parts if part)
            or '""'
        )

    def until(self, end: str) -> str:
        """Any text up to an end mark, and the mark."""
        if any(token and end.strip().startswith(token) for token in self._added):
            return f"{ANY_TEXT} {self.text(end.strip())}"
        name = f"text_{len(self.rules)}"
        pattern = re.escape(end).replace("/", "\\/").replace("\\\n", "\\n").replace("\n", "\\n")
        self.rules[f"{name}[lazy]"] = f"/(?s:.*){pattern}/"
        return name

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
        more = f" ({self.text(format.separator + begin)} call {self.text(format.call_end)})*"
        has_more = is_parallel and (not is_auto or before != "")
        # Many models write a line break between their last call and the end: it must not demand another call.
        end = f" {SPACE}" if has_more and not is_auto else ""
        return f"{self.text(first)} call {self.text(format.call_end)}{more if has_more else ''} {self.text(after)}{end}"

    def call_of(self, number: int, function: Mapping[str, Any]) -> str:
        """The name of a rule for a call of this tool, without the marks around calls."""
        format, name, schema = self._format, function["name"], parameters_of(function)
        match format.kind:
            case "json":
                head = f"{{{json.dumps(format.name_key)}: {json.dumps(name)}, {json.dumps(format.arguments_key)}: "
                rule = f"{self.text(head)} {json_value(schema, {})} {self.text('}')}"
            case "named":
                number_of = '":" /[0-9]+/' if format.is_numbered else ""
                rule = f"{self.text(name)} {number_of} {self.text(format.name_end)} {json_value(schema, {})}"
            case "harmony":
                begin, middle, end = map(self.text, HARMONY_CALL)
                rule = f"{begin} {self.text(name)} {middle} {json_value(schema, {})} {end}"
            case "tagged":
                rule = f"{self.text(name + format.name_end)} {self._tagged(schema)} {self.text(format.arguments_end)}"
            case "pythonic":
                rule = f"{self.text(name)} {pythonic_arguments(schema, self.rules)}"
            case "gemma":
                rule = f"{self.text(name)} {gemma_arguments(schema, self.rules, self.text(format.string_mark))}"
        self.rules[f"call_{number}"] = rule
        return f"call_{number}"

    def _tagged(self, schema: Schema) -> str:
        """The arguments in the schema's order; those that are not required are optional."""
        format, required = self._format, required_of(schema)
        parts = []
        for key, said in properties_of(schema).items():
            begin = self.text(f"{format.parameter_begin}{key}{format.parameter_name_end}")
            if not is_text(said):
                rest = f"{json_value(said, schema)} {self.text(format.parameter_end)}"
            elif values := values_of(said):
                rest = f"({' | '.join(map(self.text, values))}) {self.text(format.parameter_end)}"
            else:
                rest = self.until(format.parameter_end)
            parts.append(f"({begin} {rest}){'' if key in required else '?'}")
        return " ".join(parts)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
