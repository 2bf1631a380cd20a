"""Schemas of tools as clients write them, odd ones too."""

from typing import Any

import pytest

from forerun.text.output.call_grammar import call_grammar
from forerun.text.output.call_schema import (
    alternatives_of,
    is_text,
    keys_of,
    properties_of,
    required_of,
    tamed,
    values_of,
)
from tests.text.output.test_call_grammar import ALL, traits_of

ODD: list[dict[str, Any]] = [
    {"properties": None, "required": None},
    {"properties": [1, 2]},
    {"properties": "x", "required": "a"},
    {"properties": {"a": None, "b": "string", "c": True, "d": []}},
    {"properties": {"a": {"type": "string", "enum": ["x", None]}}, "required": ["a"]},
    {"properties": {"a": {"type": "string", "enum": "x"}, "b": {"const": 1}, "c": {"type": {}}}},
    {"properties": {"a": {"type": "object", "properties": None, "required": None}}},
    {"anyOf": [1, {"properties": {"a": {"type": "string"}}}], "allOf": 5},
    {"properties": {"a": {"$ref": 5}, "b": {"$ref": "#"}}},
]


@pytest.mark.parametrize("family", ALL)
def test_no_schema_is_an_error_of_ours(family: str) -> None:
    """Whether a grammar can be made of what the schemas say is found out later."""
    traits = traits_of(family)
    for number, schema in enumerate(ODD):
        tool = {"type": "function", "function": {"name": f"f{number}", "parameters": {"type": "object", **schema}}}
        call_grammar(traits, [tool], choice="required", is_parallel=True, added={})


TEXT = {"type": "string"}
NULL = {"type": "null"}
WHOLE = {"$defs": {"Text": TEXT, "Again": {"$ref": "#/$defs/Again"}, "a/b %": {"enum": ["x", None]}}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, True),
        ({"type": ["string"], "enum": ["a"]}, True),
        ({"const": "a"}, True),
        ({"$ref": "#/$defs/Text", "description": "d"}, True),
        ({"allOf": [TEXT, {"minLength": 2}]}, True),
        ({"anyOf": [TEXT, {"enum": ["a"]}]}, True),
        ({"anyOf": [TEXT, {"allOf": [TEXT, NULL]}]}, True),  # the second one fits nothing
        ({"type": "string", "enum": ["a", None]}, False),
        ({"type": ["string", "null"]}, False),
        ({"oneOf": [TEXT, NULL]}, False),
        ({"$ref": "#/$defs/a~1b %25"}, False),
        ({"$ref": "#/$defs/Again"}, False),
        ({"$ref": "other.json"}, False),
        ({"anyOf": [{"anyOf": [TEXT] * 40}] * 40}, False),  # too many to be tried
        ({"enum": []}, False),
        ({}, False),
    ],
)
def test_a_text_has_text_values(schema: dict[str, Any], expected: bool) -> None:
    assert is_text(schema, WHOLE) == expected


def test_unions_are_resolved() -> None:
    schema = {"title": "t", "anyOf": [{"type": ["integer", "null"]}, {"$ref": "#/$defs/Text"}], "minimum": 3}
    assert alternatives_of(schema, WHOLE) == [
        {"title": "t", "minimum": 3, "type": kind} for kind in ("integer", "null", "string")
    ]
    number = {"allOf": [{"type": "number"}, {"type": "integer", "maximum": 5}]}
    assert alternatives_of(number, {}) == [{"type": "integer", "maximum": 5}]
    assert values_of({"const": None}) == [None]
    assert values_of({"enum": "abc"}) == []


def test_keys_of_every_level_are_known() -> None:
    inner = {"type": "array", "items": {"anyOf": [{"properties": {"b c": {}}}, {"properties": {"$d": {}}}]}}
    assert sorted(keys_of({"properties": {"a": inner, "b c": {}}})) == ["$d", "a", "b c"]


def test_null_is_as_good_as_nothing() -> None:
    assert tamed({"properties": None, "required": None, "const": None}) == {"const": None}
    assert (properties_of({"properties": None}), required_of({"required": None})) == ({}, [])


def test_alternatives_have_properties_too() -> None:
    text = {"type": "string"}
    number = {"type": "number"}
    schema = {
        "properties": {"a": text},
        "anyOf": [{"properties": {"a": number, "b": number}}, {"allOf": [{"properties": {"c": True}}]}],
    }
    assert properties_of(schema) == {"a": text, "b": number, "c": {}}
