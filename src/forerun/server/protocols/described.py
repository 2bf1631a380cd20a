"""JSON schemas, for the API's description, of parts of requests that pydantic does not read."""

from typing import Final

from pydantic import WithJsonSchema

from forerun.server.protocols.fields import MAX_OBJECTS, Object
from forerun.server.protocols.tools import MAX_NAME, NAME_PATTERN

NAME: Final[Object] = {"type": "string", "minLength": 1, "maxLength": MAX_NAME, "pattern": f"^{NAME_PATTERN}$"}
SOME_TEXT: Final[Object] = {"type": "string", "minLength": 1}
CHOICES: Final = ["auto", "none", "required", "any"]


def an(properties: Object, *optional: str) -> Object:
    """An object with these properties, of which some are optional."""
    return {"type": "object", "properties": properties, "required": [key for key in properties if key not in optional]}


def any_of(*schemas: Object) -> Object:
    return {"anyOf": [*schemas]}


def other_than(*names: str | None) -> Object:
    """An object with a type other than these."""
    return an({"type": {"not": {"enum": [*names]}}})


NAMED: Final = an({"name": NAME})
CHAT_TOOL: Final = any_of(
    an({"function": NAMED}),
    an({"function": False, "name": NAME}, "function"),
    an({"type": {"type": "string", "not": {"const": "function"}}}),
)
MESSAGES_TOOL: Final = any_of(NAMED, other_than("custom", None))
NAMESPACED_TOOL: Final = any_of(NAMED, other_than("function", "custom"))
NAMESPACE: Final = an(
    {"type": {"const": "namespace"}, "name": NAME, "tools": {"type": "array", "items": NAMESPACED_TOOL}}
)
RESPONSES_TOOL: Final = any_of(
    an({"type": {"not": {"const": "namespace"}}, "name": NAME}, "type"),
    other_than("function", "custom", "namespace"),
    NAMESPACE,
)

ALLOWED: Final = an({"tools": {"type": "array"}, "mode": {"enum": [*CHOICES, None]}}, "mode")
TOOL_KIND: Final[Object] = {"enum": ["function", "custom", "tool"]}
TOOL_CHOICE: Final = any_of(
    {"enum": CHOICES},
    an({"type": TOOL_KIND, "function": an({"name": SOME_TEXT})}),
    an({"type": TOOL_KIND, "name": SOME_TEXT, "function": False, "custom": False}, "function", "custom"),
    an({"type": {"const": "allowed_tools"}, "allowed_tools": ALLOWED}),
    an({"type": {"const": "allowed_tools"}, "allowed_tools": False, **ALLOWED["properties"]}, "mode", "allowed_tools"),
)
MESSAGES_CHOICE: Final = any_of(
    an({"type": {"enum": [*CHOICES, None]}}, "type"), an({"type": {"const": "tool"}, "name": SOME_TEXT})
)

SCHEMA: Final = any_of({"type": "object"}, {"const": True})
FORMAT: Final = any_of(
    an({"type": {"const": "text"}}, "type"),
    an({"type": {"const": "json_object"}, "schema": {"type": "null"}}, "schema"),
    an(
        {"type": {"enum": ["json_object", "json_schema"]}, "schema": SCHEMA, "json_schema": {"type": "null"}},
        "json_schema",
    ),
    an({"type": {"const": "json_schema"}, "json_schema": an({"schema": SCHEMA})}),
)
SHAPED: Final = an(
    {
        "json": any_of(SCHEMA, {"type": "null"}),
        "regex": {"type": ["string", "null"]},
        "choice": {"type": ["array", "null"], "items": {"type": "string"}, "minItems": 1},
        "grammar": {"type": ["string", "null"], "minLength": 1},
        "json_object": {"type": ["boolean", "null"]},
        "structural_tag": {"type": "null"},
    },
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "structural_tag",
)
HAS_FORMAT: Final = an({"format": any_of(FORMAT, {"type": "null"})}, "format")

ITEM: Final = any_of(
    an({"type": {"type": "string", "not": {"enum": ["message"]}}}),
    an({"type": {"const": "message"}, "role": {"type": "string"}}, "type"),
)


def items(schema: Object) -> WithJsonSchema:
    """Describes a list of objects."""
    return WithJsonSchema({"type": "array", "items": schema, "maxItems": MAX_OBJECTS})
