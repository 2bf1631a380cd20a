"""Grammars of strangers: what cannot be compiled is refused with its cause, whatever it does to the compiler."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from forerun.core.grammar import Grammar
from forerun.text.grammar_check import LIMITS, GrammarCheck, GrammarFaultError


@pytest.fixture(scope="module")
def check() -> Iterator[GrammarCheck]:
    made = GrammarCheck()
    yield made
    made.close()


def within(part: Any) -> dict[str, Any]:
    """A schema with this part some levels down."""
    outer = {"type": "object", "properties": {"list": {"type": "array", "items": part}}, "required": ["list"]}
    return {"type": "object", "properties": {"a": {"type": "string"}, "outer": outer}, "required": ["a", "outer"]}


@pytest.mark.parametrize(
    ("part", "place", "said"),
    [
        ({"not": {"type": "string"}}, ".not", "not"),
        ({"type": "array", "uniqueItems": True}, ".uniqueItems", "uniqueItems"),
        ({"type": "string", "pattern": "(?=a)b"}, ".pattern", "look-ahead"),
        ({"type": "string", "pattern": "(a"}, ".pattern", "unclosed group"),
        ({"type": "string", "format": "odd"}, ".format", "odd"),
        ({"$ref": "#/$defs/none"}, ".$ref", "/$defs/none"),
        ({"anyOf": [{"type": "string"}, {"type": "text"}]}, ".anyOf.1.type", "text"),
        ({"if": {}, "then": {}}, "", '"if", "then"'),
    ],
)
def test_a_fault_in_a_schema_is_found(check: GrammarCheck, part: Any, place: str, said: str) -> None:
    schema = within(part)
    with pytest.raises(GrammarFaultError) as caught:
        check.require(Grammar.json_schema(schema), {"other": {"type": "string"}, "here": schema})
    assert caught.value.place == f"here.properties.outer.properties.list.items{place}"
    assert said in str(caught.value)


ENDLESS = {"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}, "minItems": 1}}, "$ref": "#/$defs/l"}
KEYS = {"type": "object", "patternProperties": {"^score$": {"type": "integer"}}, "additionalProperties": False}
OVERGROWN = {"type": "string", "pattern": "^((a|a)*)*b(a?){60}a{60}$"}  # is compiled at once, and then grows


@pytest.mark.parametrize(
    "schema",
    [
        ENDLESS,
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/l"}}, "required": ["x"]},
        {**KEYS, "required": ["score"]},
        {"type": "array", "items": {**KEYS, "required": ["score"]}, "minItems": 1},
        {"type": "object", "properties": {"n": {"const": 1}, "b": OVERGROWN}, "required": ["n", "b"]},
    ],
)
def test_a_form_whose_texts_cannot_end_is_refused(check: GrammarCheck, schema: Any) -> None:
    schema = {"$defs": ENDLESS["$defs"], **schema}
    with pytest.raises(GrammarFaultError, match=r"cannot be completed|without end"):
        check.require(Grammar.json_schema(schema), {"here": schema})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1_000},
        {"type": "string", "minLength": 10_000},
        {"type": "string", "pattern": "^.{0,1000}x.{0,500} end$"},
        {"type": "string", "pattern": "^([a-z0-9]+(-[a-z0-9]+)*\\.)+[a-z]{2,}$"},
    ],
)
def test_a_form_with_long_texts_is_not_refused(check: GrammarCheck, schema: Any) -> None:
    check.require(Grammar.json_schema(schema), {"here": schema})


def test_advice_is_for_clients(check: GrammarCheck) -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
    with pytest.raises(GrammarFaultError, match=r"the alternatives of oneOf overlap, .* use anyOf"):
        check.require(Grammar.json_schema(schema), {"here": schema})


def nested(num: int) -> str:
    return '{"type": "object", "properties": {"a": ' * num + "{}" + "}}" * num


def rules(num: int) -> Grammar:
    chain = "\n".join(f'r{number}: r{number + 1} "a"' for number in range(num))
    return Grammar.lark(f'start: r0\n{chain}\nr{num}: "b"')


COSTLY = {
    "a chain of rules": rules(20_000),
    "another": rules(3_000),
    "many properties": Grammar.json_schema({"type": "object", "properties": {f"p{n}": {} for n in range(9_000)}}),
    "references": Grammar.json_schema(
        {"$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(8_000)}, "$ref": "#/$defs/d0"}
    ),
    "a deep schema": Grammar.json_schema(nested(1_000)),
    "a deep schema in a grammar": Grammar.lark(f"start: %json {nested(1_000)}"),
    "deep parentheses": Grammar.regex("(" * 100_000 + "a" + ")" * 100_000),
    "deep groups": Grammar.lark("start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    "a large schema": Grammar.json_schema({"enum": ["x" * 100] * 10_000}),
    "a large enumeration": Grammar.json_schema({"enum": [f"value {number}" for number in range(30_000)]}),
    "many alternatives": Grammar.json_schema(
        {"allOf": [{"anyOf": [{"properties": {f"p{n}": {"const": k}}} for k in (1, 2)]} for n in range(16)]}
    ),
}


@pytest.mark.parametrize("name", [*COSTLY])
def test_what_costs_too_much_is_refused(check: GrammarCheck, name: str) -> None:
    with pytest.raises(GrammarFaultError):
        check.require(COSTLY[name], {})
    check.require(Grammar.json_schema({"type": "object", "properties": {"a": {"const": name}}}), {})


def test_a_refusal_takes_less_than_a_second() -> None:
    assert LIMITS.max_s <= 0.6


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.json_schema(json.loads(nested(50))),
        Grammar.regex("(a|a)*b" * 60),
        Grammar.lark("start: <[7]> /[a-z]*/ <[151657]>"),
        Grammar.json_schema({"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)}}),
        Grammar.choice([f"value {number}" for number in range(2_000)]),
    ],
)
def test_what_can_be_used_is_not_refused(check: GrammarCheck, grammar: Grammar) -> None:
    check.require(grammar, {})
