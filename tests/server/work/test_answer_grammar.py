"""The grammar of a whole answer: thoughts, calls and the form that the client wants."""

from dataclasses import replace
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from forerun.core.grammar import Grammar
from forerun.server.protocols.generation_request import ToolUse
from forerun.server.work.answer_grammar import answer_grammar, closed_tools
from forerun.text.grammar_compiler import source_of
from forerun.text.output.traits import CallFormat, TemplateTraits

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
YES = Grammar.choice(["yes", "no"])
THINKS = TemplateTraits(thought=("<think>", "</think>"))
HARMONY = TemplateTraits(calls=CallFormat(kind="harmony"))
ANALYSIS = "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>yes"
HARMONY_CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"


class Bytes:
    """A vocabulary of single bytes."""

    bos_token_id = None
    eos_token_id = 256
    special_token_ids = (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"\xff<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def fits(grammar: Grammar, text: str) -> bool:
    """Whether a text, behind the grammar's mark, is complete."""
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(Bytes())), source_of(grammar), log_level=0)
    ids = list(text.partition(grammar.after)[2].encode() if grammar.after else text.encode())
    return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())


@pytest.mark.parametrize(
    ("traits", "prompt", "use", "good", "bad"),
    [
        (TemplateTraits(), "", {}, ["yes", "no"], ["maybe", CALL, "<think>a</think>yes"]),
        (THINKS, "", {}, ["yes", "<think>\nso\n</think>\n\nyes"], ["<think>so</think>maybe"]),
        (THINKS, "<think>\n", {}, ["so\n</think>\n\nyes"], ["so</think>maybe"]),
        (THINKS, "<think>\n\n</think>\n\n", {}, ["yes"], ["<think>a</think>yes"]),
        (TemplateTraits(), "", {"shown": [TOOL]}, ["yes", CALL], [f"yes{CALL}", f"{CALL}yes"]),
        (THINKS, "<think>", {"shown": [TOOL]}, ["a</think>\nyes", f"a</think>\n{CALL}"], ["a</think>maybe"]),
        (TemplateTraits(), "", {"shown": [TOOL], "choice": "required"}, [CALL, f"{CALL}\n{CALL}"], ["yes"]),
        (TemplateTraits(), "", {"shown": [TOOL], "choice": "none"}, ["yes"], [CALL]),
        (HARMONY, "", {}, [FINAL, ANALYSIS + FINAL], ["yes", HARMONY_CALL]),
        (HARMONY, "", {"shown": [TOOL]}, [FINAL, ANALYSIS + FINAL, ANALYSIS + HARMONY_CALL], ["yes"]),
    ],
)
def test_a_form(traits: TemplateTraits, prompt: str, use: dict[str, Any], good: list[str], bad: list[str]) -> None:
    grammar = answer_grammar(traits, ToolUse(**use), YES, prompt=prompt, added={})
    assert grammar is not None
    assert [text for text in good if not fits(grammar, text)] == []
    assert [text for text in bad if fits(grammar, text)] == []


@pytest.mark.parametrize(
    "shape", [YES, Grammar.regex("yes|no/a"), Grammar.json_schema({"enum": ["yes"]}), Grammar.json_object()]
)
def test_every_kind_of_form_stands_behind_thoughts(shape: Grammar) -> None:
    text = {"json_schema": '"yes"' if "enum" in shape.text else "{}"}.get(shape.kind, "yes")
    for prompt in ("", "<think>"):
        grammar = answer_grammar(THINKS, ToolUse(), shape, prompt=prompt, added={})
        assert grammar is not None
        assert fits(grammar, f"{'' if prompt else '<think>'}so</think>\n\n{text}")


@pytest.mark.parametrize(
    ("pattern", "good"),
    [
        (r"\d{2}\/\d{2}", "12/34"), (r"\d{2}/\d", "12/3"), (r"[^\/]+", "ab"), (r"a\\/b", "a\\/b"), ("a\nb", "a\nb"),
        ("a\\\nb", "a\nb"), (r"\\\/", "\\/"), ("\x7f", "\x7f"),
    ],
)  # fmt: skip
def test_a_slash_in_a_pattern_means_a_slash_everywhere(pattern: str, good: str) -> None:
    shape = Grammar.regex(pattern)
    for traits, prompt, text in ((TemplateTraits(), "", good), (THINKS, "<think>", f"so</think>{good}")):
        grammar = answer_grammar(traits, ToolUse(), shape, prompt=prompt, added={})
        assert grammar is not None
        assert fits(grammar, text)
        assert not fits(grammar, f"{text}/")
    assert fits(shape, good)
    assert fits(replace(shape, after="</think>"), f"</think>{good}")


def test_a_choice_may_hold_any_character() -> None:
    letters = [*map(chr, range(0x20)), '"', "\\", "/", "\x7f", "\x80", "\u2028", "\ufeff", "\U0001f600"]
    assert all(fits(Grammar.choice(["no", f"a{letter}b"]), f"a{letter}b") for letter in letters)


def test_without_a_demand_there_is_no_grammar() -> None:
    assert answer_grammar(THINKS, ToolUse(), None, prompt="", added={}) is None
    lazy = answer_grammar(THINKS, ToolUse(shown=[TOOL]), None, prompt="<think>", added={})
    assert lazy is not None
    assert (lazy.after, lazy.trigger) == ("", "<tool_call>")


@pytest.mark.parametrize(
    ("more", "is_closed"),
    [
        ({"properties": {"a": {}}, "required": ["a"]}, True),
        ({"properties": {}}, True),
        ({"properties": {}, "required": ["a"]}, False),
        ({"properties": None, "required": None}, False),
        ({"properties": {"a": {}}, "required": None}, True),
        ({"properties": {}, "anyOf": [{"required": ["a"]}]}, False),
    ],
)
def test_only_schemas_that_name_all_arguments_allow_no_others(more: dict[str, Any], is_closed: bool) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **more}}}
    (found,) = closed_tools(ToolUse(shown=[tool]))
    assert ("additionalProperties" in found["function"]["parameters"]) == is_closed
