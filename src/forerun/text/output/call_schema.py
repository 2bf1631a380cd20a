"""JSON schemas of tools' arguments, as far as calls need them."""

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
    """The schema without what no grammar is made of: patterns with look-around or references, and other documents.

    Go's clients write null for no properties and for none that is required.
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
    """Whether only texts fit this schema, as far as that is said plainly."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if "type" in schema:
        return bool(schema["type"] in ("string", ["string"]))
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)
