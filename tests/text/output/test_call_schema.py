"""Schemas of tools as clients write them, odd ones too."""

from typing import Any

import pytest

from forerun.text.output.call_grammar import call_grammar
from forerun.text.output.call_schema import is_text, properties_of, required_of, tamed, values_of
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


def test_a_text_has_text_values() -> None:
    assert is_text({"type": "string"})
    assert is_text({"type": ["string"], "enum": ["a"]})
    assert is_text({"const": "a"})
    assert not is_text({"type": "string", "enum": ["a", None]})
    assert not is_text({"enum": []})
    assert values_of({"const": None}) == [None]
    assert values_of({"enum": "abc"}) == []


def test_null_is_as_good_as_nothing() -> None:
    assert tamed({"properties": None, "required": None, "const": None}) == {"const": None}
    assert (properties_of({"properties": None}), required_of({"required": None})) == ({}, [])


def test_alternatives_have_properties_too() -> None:
    text, number = {"type": "string"}, {"type": "number"}
    schema = {
        "properties": {"a": text},
        "anyOf": [{"properties": {"a": number, "b": number}}, {"allOf": [{"properties": {"c": True}}]}],
    }
    assert properties_of(schema) == {"a": text, "b": number, "c": {}}
