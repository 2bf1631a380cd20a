"""Rules, in llguidance's Lark, for arguments that are written as in Python or as Gemma 4 does."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from forerun.text.output.call_schema import (
    JSON_STYLE,
    Schema,
    as_schema,
    is_text,
    properties_of,
    required_of,
    tamed,
    values_of,
)

NUMBER: Final = r"/-?(0|[1-9][0-9]{0,99})(\.[0-9]{1,99})?([eE][+-]?[0-9]{1,2})?/"  # finite in float64
INTEGER: Final = r"/-?(0|[1-9][0-9]{0,99})/"
TRUE_OR_FALSE: Final = '("true" | "false")'
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SHARED: Final = ("$defs", "definitions")
Rules = dict[str, str]


def json_value(schema: Schema, whole: Schema) -> str:
    """JSON for a part of a schema, which may refer to parts of the whole."""
    shared = {name: whole[name] for name in SHARED if name in whole}
    return f"%json {json.dumps({**tamed({**schema, **shared}), **JSON_STYLE})}"


def pythonic_arguments(schema: Schema, rules: Rules) -> str:
    """(a=1, b="x"): values in JSON, which Python writes in the same way except for true, false and null."""

    def value(said: Schema) -> str:
        if said.get("type") == "boolean":
            return '("True" | "False")'
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
        if is_text(said):
            choices = [f"{mark} {json.dumps(text)} {mark}" for text in values_of(said)]
            return _one_of(choices) if choices else "gm_text"
        match said:
            case {"anyOf": [*schemas]} | {"oneOf": [*schemas]}:
                return _one_of(map(value, map(as_schema, schemas)))
            case {"type": [*kinds]}:
                return _one_of(value({**said, "type": kind}) for kind in kinds)
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
    properties, required = properties_of(schema), required_of(schema)
    first, later = '""', '""'  # the rule before any property was written, and the rule after one
    for key, said in reversed(properties.items()):
        entry = f"{json.dumps(key + joint)} {value(said)}"
        number = len(rules)
        rules[f"entry_{number}"] = entry
        rules[f"later_{number}"] = later
        begun = f"entry_{number} later_{number}"
        later = f"{json.dumps(comma)} {begun}"
        if key in required:
            first = begun
        else:
            rules[f"skipped_{number}"] = first
            first = f"({begun} | skipped_{number})"
            later = f"({later} | later_{number})"
    return f"{json.dumps(begin)} {first} {json.dumps(end)}"


def _number(said: Schema) -> str:
    """A number's rule; "" if the schema is not a number's, or lists its values."""
    kind = said.get("type")
    if kind not in ("integer", "number") or "enum" in said or "const" in said:
        return ""
    if any(bound in said for bound in BOUNDS):
        return json_value(said, {})
    return INTEGER if kind == "integer" else NUMBER


def _one_of(rules: Iterable[str]) -> str:
    return f"({' | '.join(rules)})"
