"""Rules, in llguidance's Lark, for arguments that are written as in Python or as Gemma 4 does."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from forerun.core.grammar import lark_text
from forerun.text.output.call_schema import (
    JSON_STYLE,
    Schema,
    alternatives_of,
    as_schema,
    is_text,
    properties_of,
    required_of,
    takes_texts,
    tamed,
    values_of,
)

NUMBER: Final = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,2})?/"  # finite in float64
INTEGER: Final = r"/-?(0|[1-9][0-9]{0,99})/"
TRUE_OR_FALSE: Final = '("true" | "false")'
PYTHON_BOOLEAN: Final = '("True" | "False")'
HOW_MANY: Final = frozenset(("items", "prefixItems", "minItems", "maxItems", "contains"))
WHAT_PROPERTIES: Final = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties")
)
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SHARED: Final = ("$defs", "definitions")
Rules = dict[str, str]


def json_value(schema: Schema, whole: Schema) -> str:
    """JSON for a part of a schema, which may refer to parts of the whole."""
    shared = {name: whole[name] for name in SHARED if name in whole}
    return f"%json {json.dumps({**tamed({**schema, **shared}), **JSON_STYLE})}"


def pythonic_arguments(schema: Schema, rules: Rules) -> str:
    """(a=1, b="x"): values in JSON, which Python writes in the same way except for true, false and null."""
    text = json_value({"type": "string"}, {})
    rules |= {
        "py_value": f'{text} | {NUMBER} | {PYTHON_BOOLEAN} | "None" | py_list | py_mapping',
        "py_list": '"[" (py_value (", " py_value)*)? "]"',
        "py_mapping": '"{" (py_entry (", " py_entry)*)? "}"',
        "py_entry": f'{text} ": " py_value',
    }

    def value(said: Schema) -> str:
        return one_of(map(simple, alternatives_of(said, schema)))

    def simple(said: Schema) -> str:
        match said:
            case {"enum": _} | {"const": _}:
                pass
            case {"type": "boolean"}:
                return PYTHON_BOOLEAN
            case {"type": "null"}:
                return '"None"'
            case {"type": "array"} if not HOW_MANY.intersection(said):
                return "py_list"
            case {"type": "object"} if not WHAT_PROPERTIES.intersection(said):
                return "py_mapping"
            case _ if "type" not in said and takes_texts(said) and "pattern" not in said:
                return "py_value"
        return _number(said) or json_value(said, schema)

    return in_order(schema, rules, ("(", "=", ", ", ")"), value)


def gemma_arguments(schema: Schema, rules: Rules, mark: str) -> str:
    """{a:1,b:<|"|>x<|"|>}: values with bare keys. `mark` stands around texts; their lengths are not enforced."""
    any_text = "/(?s:.*)/" if mark.startswith("<[") else "/[^<]*/"
    rules |= {
        "gm_text": f"{mark} {any_text} {mark}",
        "gm_value": f'gm_text | {NUMBER} | {TRUE_OR_FALSE} | "null" | gm_list | gm_mapping',
        "gm_list": '"[" (gm_value ("," gm_value)*)? "]"',
        "gm_mapping": '"{" (gm_key ":" gm_value ("," gm_key ":" gm_value)*)? "}"',
        "gm_key": r"/[A-Za-z_][A-Za-z0-9_-]*/",
    }

    def value(said: Schema) -> str:
        if is_text(said, schema):
            choices = [f"{mark} {lark_text(text)} {mark}" for text in values_of(said)]
            return one_of(choices) if choices else "gm_text"
        match said:
            case {"anyOf": [*schemas]} | {"oneOf": [*schemas]}:
                return one_of(map(value, map(as_schema, schemas)))
            case {"type": [*kinds]}:
                return one_of(value({**said, "type": kind}) for kind in kinds)
            case {"type": "boolean"}:
                return TRUE_OR_FALSE
            case {"type": "null"}:
                return '"null"'
            case {"type": "array", "items": Mapping() as items}:
                return f'"[" ({value(items)} ("," {value(items)})*)? "]"'
            case {"type": "array"}:
                return "gm_list"
            case {"type": "object", "properties": _}:
                return in_order(said, rules, ("{", ":", ",", "}"), value)
            case {"type": "object"}:
                return "gm_mapping"
        return _number(said) or "gm_value"

    return in_order(schema, rules, ("{", ":", ",", "}"), value)


def in_order(schema: Schema, rules: Rules, marks: tuple[str, str, str, str], value: Callable[[Schema], str]) -> str:
    """All properties in the schema's order; those that are not required are optional.

    Args:
        marks: before the first, between a name and its value, between two, and after the last.
        value: the rule for a value of a schema.
    """
    begin, joint, comma, end = marks
    properties = properties_of(schema)
    required = required_of(schema)
    first = '""'  # the rule before any property was written
    later = '""'  # the rule after one
    for key, said in reversed(properties.items()):
        entry = f"{lark_text(key + joint)} {value(said)}"
        number = len(rules)
        rules[f"entry_{number}"] = entry
        rules[f"later_{number}"] = later
        begun = f"entry_{number} later_{number}"
        later = f"{lark_text(comma)} {begun}"
        if key in required:
            first = begun
        else:
            rules[f"skipped_{number}"] = first
            first = f"({begun} | skipped_{number})"
            later = f"({later} | later_{number})"
    return f"{lark_text(begin)} {first} {lark_text(end)}"


def _number(said: Schema) -> str:
    """A number's rule; "" if the schema is not a number's, or lists its values."""
    kind = said.get("type")
    if kind not in ("integer", "number") or "enum" in said or "const" in said:
        return ""
    if any(bound in said for bound in BOUNDS):
        return json_value(said, {})
    return INTEGER if kind == "integer" else NUMBER


def one_of(rules: Iterable[str]) -> str:
    return f"({' | '.join(rules)})"
