"""The grammar of a whole answer: thoughts, then tool calls or the form that the client wants."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from forerun.core.grammar import Grammar, lark_pattern
from forerun.server.protocols.generation_request import Chat, GenerationRequest, Tool, ToolUse
from forerun.text.grammar_compiler import styled
from forerun.text.output.call_grammar import HARMONY_THOUGHT, SPACE, call_grammar
from forerun.text.output.call_schema import JSON_STYLE, parameters_of, tamed
from forerun.text.output.lark import Lark
from forerun.text.output.traits import TemplateTraits

HARMONY_ANSWER: Final = "<|channel|>final<|message|>"  # where gpt-oss's answer begins, after its thoughts
OPEN: Final = frozenset(("additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"))
START: Final = "start: "


def answer_grammar(
    traits: TemplateTraits, use: ToolUse, shape: Grammar | None, *, prompt: str, added: Mapping[str, int]
) -> Grammar | None:
    """The grammar of an answer with its thoughts; None if it may be any text.

    Args:
        use: with choice auto, the answer has calls or the shape.
        shape: the form that the answer must have, without thoughts.
        prompt: as formatted by the chat template, whose end may open a thought, or close one.
        added: see `call_grammar`.
    """
    is_auto = use.choice == "auto"
    end = prompt.rstrip()
    thought = traits.thought
    if thought is not None and end.endswith(thought[1].strip()):
        traits = replace(traits, thought=None)
        thought = None
    is_open = thought is not None and end.endswith(thought[0].strip())
    calls = call_grammar(
        traits,
        closed_tools(use),
        choice="auto" if is_auto and shape is None else "required",
        is_parallel=use.is_parallel,
        added=added,
        is_thinking=is_open,
    )
    if shape is None or (calls is not None and not is_auto):
        return calls
    shaped = shaped_answer(traits, shape, added=added, is_open=is_open)
    return shaped if calls is None else either(calls, shaped)


def closed_tools(use: ToolUse) -> list[Tool]:
    """The tools that may be called. A schema that lists all arguments, without a key of `OPEN`, allows no others."""
    found = list[Tool]()
    for tool in use.callable:
        function = tool["function"]
        schema = function["parameters"]
        if names_all(schema) and not OPEN.intersection(schema):
            function = {**function, "parameters": {**schema, "additionalProperties": False}}
        found.append({**tool, "function": function})
    return found


def names_all(schema: Mapping[str, Any]) -> bool:
    """True if a schema has properties, and among them all that it requires."""
    properties = schema.get("properties")
    needed = schema.get("required") or []
    return isinstance(properties, dict) and isinstance(needed, list) and all(name in [*properties] for name in needed)


def schemas_of(request: GenerationRequest) -> dict[str, Any]:
    """The JSON schemas of a request's grammar, by their paths in the request, in the form that the grammar uses."""
    found: dict[str, Any] = {}
    if request.grammar is not None and request.grammar.kind == "json_schema":
        found[request.grammar_at] = json.loads(request.grammar.text)
    if isinstance(request.prompt, Chat):
        for function in (tool["function"] for tool in closed_tools(request.prompt.tool_use)):
            found[f"tools.{function['name']}.parameters"] = {**tamed(parameters_of(function)), **JSON_STYLE}
    return found


def shaped_answer(traits: TemplateTraits, shape: Grammar, *, added: Mapping[str, int], is_open: bool) -> Grammar:
    """A grammar of thoughts, if the model has any, and a text of this shape."""
    is_harmony = traits.call_format.kind == "harmony"
    thought = HARMONY_THOUGHT if is_harmony else traits.thought
    if thought is None:
        return lark_of(shape)
    lark = Lark(added)
    answer = f"{lark.text(HARMONY_ANSWER)} answer" if is_harmony else "answer"
    lark.rules["answer"] = f"%lark {{\n{lark_of(shape).text}\n}}"
    if is_open:
        return lark.grammar(f"{SPACE} {answer}", after=thought[1].strip())
    lark.rules["thought"] = f"{lark.text(thought[0])} {lark.until(thought[1])} {SPACE}"
    return lark.grammar(f"thought? {answer}")


def lark_of(shape: Grammar) -> Grammar:
    """The same texts in Lark."""
    match shape.kind:
        case "lark":
            return shape
        case "json_schema":
            return Grammar.lark(f"{START}%json {json.dumps(styled(json.loads(shape.text)))}")
        case "regex":
            return Grammar.lark(START + lark_pattern(shape.text))


def either(calls: Grammar, shaped: Grammar) -> Grammar:
    """Texts of either grammar."""
    rules = [f"calls: %lark {{\n{calls.text}\n}}", f"shaped: %lark {{\n{shaped.text}\n}}"]
    return replace(calls, text="\n".join([f"{START}calls | shaped", *rules]))
