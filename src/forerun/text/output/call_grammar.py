"""Grammars of tool calls, in llguidance's Lark."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from forerun.core.grammar import Grammar
from forerun.text.output.call_schema import (
    parameters_of,
)
from forerun.text.output.lark import Lark
from forerun.text.output.loose_grammar import gemma_arguments, json_value, pythonic_arguments
from forerun.text.output.tagged_grammar import TaggedGrammar
from forerun.text.output.traits import CallFormat, TemplateTraits

SPACE: Final = "/[ \\n]{0,4}/"
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
    if not functions or (is_auto and not format.first_mark):
        return None
    lark = Lark(added)
    rules = Calls(lark, format)
    lark.rules["call"] = " | ".join([rules.call_of(number, function) for number, function in enumerate(functions)])
    calls = rules.calls(is_parallel=is_parallel and not traits.wants_single_calls, is_auto=is_auto)
    if is_auto:
        return lark.grammar(calls, trigger=format.first_mark)
    thought = HARMONY_THOUGHT if format.kind == "harmony" else traits.thought
    if thought is None or is_thinking:
        return lark.grammar(f"{SPACE} {calls}" if is_thinking else calls, after=thought[1] if thought else "")
    lark.rules["thought"] = f"{lark.text(thought[0])} {lark.until(thought[1])} {SPACE}"
    return lark.grammar(f"thought? {calls}")


class Calls:
    """Adds the rules of calls to those of a grammar."""

    def __init__(self, lark: Lark, format: CallFormat) -> None:
        self._lark = lark
        self._format = format

    def calls(self, *, is_parallel: bool, is_auto: bool) -> str:
        """All calls with their marks; after a trigger without the mark that triggered."""
        format = self._format
        if format.kind == "harmony":
            return "call"
        begin = format.call_begin + format.name_begin
        before = format.section_begin
        after = format.section_end
        if format.is_list:
            before = before + "["
            after = "]" + after
        first = before + begin
        if is_auto:
            first = first[first.index(format.first_mark) + len(format.first_mark) :]
        call = "call" if format.kind == "tagged" else f"call {self._lark.text(format.call_end)}"
        more = f" ({self._lark.text(format.separator + begin)} {call})*"
        has_more = is_parallel and (not is_auto or before != "")
        # Many models write a line break between their last call and the end: it must not demand another call.
        end = f" {SPACE}" if has_more and not is_auto else ""
        return f"{self._lark.text(first)} {call}{more if has_more else ''} {self._lark.text(after)}{end}"

    def call_of(self, number: int, function: Mapping[str, Any]) -> str:
        """The name of a rule for a call of this tool, without the marks around calls but for the end of tagged ones."""
        format = self._format
        name = function["name"]
        schema = parameters_of(function)
        rules = self._lark.rules
        text = self._lark.text
        match format.kind:
            case "json":
                name_key, said_name, arguments_key = map(as_json, (format.name_key, name, format.arguments_key))
                head = f"{{{name_key}: {said_name}, {arguments_key}: "
                rule = f"{text(head)} {json_value(schema, {})} {text('}')}"
            case "named":
                number_of = '":" /[0-9]+/' if format.is_numbered else ""
                rule = f"{text(name)} {number_of} {text(format.name_end)} {json_value(schema, {})}"
            case "harmony":
                begin, middle, end = map(text, HARMONY_CALL)
                rule = f"{begin} {text(name)} {middle} {json_value(schema, {})} {end}"
            case "tagged":
                tagged = TaggedGrammar(self._lark, format, schema, prefix=f"call_{number}")
                rule = f"{text(name + format.name_end)} {tagged.arguments()}"
            case "pythonic":
                rule = f"{text(name)} {pythonic_arguments(schema, rules)}"
            case "gemma":
                rule = f"{text(name)} {gemma_arguments(schema, rules, text(format.string_mark))}"
        rules[f"call_{number}"] = rule
        return f"call_{number}"


def as_json(text: str) -> str:
    """The text as JSON in its own letters, as prompts show it."""
    return json.dumps(text, ensure_ascii=False)
