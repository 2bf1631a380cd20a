"""Helps with JSON schemas of tools' arguments."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
JSON_STYLE: Final = {
    "x-guidance": {
        "lenient": True, "coerce_one_of": True, "whitespace_flexible": False, "key_separator": ": ",
        "item_separator": ", ",
    }
}  # fmt: skip
NONE_IF_NULL: Final = ("properties", "required")
UNUSUAL_PATTERN: Final = re.compile(r"\(\?(?:[=!>]|<[=!]|P[=>])|\\[1-9kK]")  # look-around, references


def parameters_of(function: Mapping[str, Any]) -> Schema:
    """The schema of a tool's arguments, which is an object's."""
    return {"properties": {}, **(function.get("parameters") or {}), "type": "object"}


def tamed(said: Any) -> Any:
    """The schema without parts that have no grammar: patterns with look-around or references, and other documents.

    Clients in Go write null for an empty list of properties or of required ones.
    """
    if isinstance(said, list):
        return [tamed(value) for value in said]
    if not isinstance(said, Mapping):
        return said
    kept = {key: tamed(value) for key, value in said.items() if value is not None or key not in NONE_IF_NULL}
    if isinstance(pattern := said.get("pattern"), str) and UNUSUAL_PATTERN.search(pattern):
        del kept["pattern"]
    if isinstance(place := said.get("$ref"), str) and not place.startswith("#"):
        del kept["$ref"]
    return kept


def is_text(schema: Schema) -> bool:
    """Whether only texts fit this schema, by its type and listed values alone."""
    values = values_of(schema)
    are_texts = all(isinstance(value, str) for value in values)
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"])) and are_texts
    return bool(values) and are_texts


def values_of(schema: Schema) -> list[Any]:
    """The only values that a schema allows; none if it does not list them."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else []


def properties_of(schema: Any) -> dict[str, Schema]:
    """The schemas of an object's properties, including those of its alternatives."""
    if not isinstance(schema, Mapping):
        return {}
    found = schema.get("properties")
    own = {name: as_schema(said) for name, said in found.items()} if isinstance(found, Mapping) else {}
    for name in ("allOf", "anyOf", "oneOf"):
        for other in schema[name] if isinstance(schema.get(name), list) else ():
            own = {**properties_of(other), **own}
    return own


def as_schema(said: Any) -> Schema:
    """The schema; without constraints if it is true or false, which are schemas too."""
    return said if isinstance(said, Mapping) else {}


def required_of(schema: Schema) -> list[Any]:
    """The names of an object's properties that it must have."""
    found = schema.get("required")
    return found if isinstance(found, list) else []
