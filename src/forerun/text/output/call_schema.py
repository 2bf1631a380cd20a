"""Helps with JSON schemas of tools' arguments."""

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

Schema: TypeAlias = Mapping[str, Any]
JSON_STYLE: Final = {
    "x-guidance": {
        "lenient": True, "coerce_one_of": True, "whitespace_flexible": False, "key_separator": ": ",
        "item_separator": ", ",
    }
}  # fmt: skip
NONE_IF_NULL: Final = ("properties", "required")
UNIONS: Final = ("$ref", "allOf", "anyOf", "oneOf")
OF_OTHERS: Final = frozenset(
    (
        *UNIONS,
        "not",
        "if",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    )
)  # keywords of schemas whose values are meant to be no texts, even without a type
MOST_ALTERNATIVES: Final = 64
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


class TooManyError(Exception):
    """A schema has more alternatives than are tried."""


def alternatives_of(schema: Schema, whole: Schema) -> list[Schema]:
    """The schemas, each of one type or without a type, of which a value fits one: unions, references to parts of the
    whole schema, and allOf are resolved. A schema that cannot be resolved is given as it is."""
    try:
        return _alternatives(schema, whole, []) or [schema]
    except TooManyError:
        return [schema]


def _alternatives(schema: Schema, whole: Schema, seen: list[Schema]) -> list[Schema]:
    seen.append(schema)
    if len(seen) > MOST_ALTERNATIVES:
        raise TooManyError
    own = {key: said for key, said in schema.items() if key not in UNIONS}
    groups: list[list[Schema]] = []
    if isinstance(place := schema.get("$ref"), str):
        groups.append(_alternatives(_part_of(whole, place), whole, seen))
    for name in ("allOf", "anyOf", "oneOf"):
        members = schema[name] if isinstance(schema.get(name), list) else []
        found = [_alternatives(as_schema(member), whole, seen) for member in members]
        groups += found if name == "allOf" else [[*chain(*found)]] if found else []
    if isinstance(kinds := schema.get("type"), list):
        own.pop("type")
        groups.append([{"type": kind} for kind in kinds])
    result: list[Schema] = [own]
    for group in groups:
        result = [both for one in result for other in group if (both := _joined(one, other)) is not None]
        if len(result) > MOST_ALTERNATIVES:
            raise TooManyError
    return result


def _joined(one: Schema, other: Schema) -> Schema | None:
    """Both schemas in one; None if no value fits both."""
    kinds = {schema["type"] for schema in (one, other) if isinstance(schema.get("type"), str)}
    if len(kinds) > 1 and kinds != {"integer", "number"}:
        return None
    return {**one, **other, **({"type": min(kinds)} if kinds else {})}


def _part_of(whole: Schema, place: str) -> Schema:
    """The part of a schema that a reference names; without constraints if there is none."""
    found: Any = whole if place.startswith("#") else {}
    for key in place.split("/")[1:]:
        key = unquote(key).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else {}
        else:
            found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return as_schema(found)


def takes_texts(schema: Schema) -> bool:
    """Whether a text fits this schema, which has one type or none, beside those that it lists."""
    if values_of(schema):
        return False
    return schema["type"] == "string" if "type" in schema else not OF_OTHERS.intersection(schema)


def listed_texts(schema: Schema) -> list[str]:
    """The texts that a schema lists as its values."""
    is_text = schema.get("type", "string") == "string"
    return [value for value in values_of(schema) if isinstance(value, str)] if is_text else []


def is_text(schema: Schema, whole: Schema) -> bool:
    """Whether only texts fit this schema."""
    found = alternatives_of(schema, whole)
    return all(
        len(listed_texts(one)) == len(values_of(one)) and (values_of(one) or one.get("type") == "string")
        for one in found
    )


def kind_of(value: object) -> str:
    """The type of a JSON value in the words of JSON Schema."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def takes(schema: Schema, value: object) -> bool:
    """Whether a value has the type of this schema, which has one or none, and is one of its listed values."""
    kind = kind_of(value)
    listed = values_of(schema)
    if listed:
        return any(kind_of(one) == kind and one == value for one in listed)
    return schema.get("type", kind) in (kind, "number" if kind == "integer" else kind)


def keys_of(schema: Any) -> list[str]:
    """The names of all properties in a schema, on every level."""
    found: list[str] = []
    open_parts = [schema]
    while open_parts:
        part = open_parts.pop()
        if isinstance(part, Mapping):
            if isinstance(own := part.get("properties"), Mapping):
                found += own
            open_parts += part.values()
        elif isinstance(part, list):
            open_parts += part
    return list(dict.fromkeys(found))


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
