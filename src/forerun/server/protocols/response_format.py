"""The fields for the form of an answer, of OpenAI, vLLM and llama-server, and the grammar that they give."""

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

from pydantic import Field, StringConstraints, WithJsonSchema

from forerun.core.grammar import Grammar
from forerun.server.protocols.described import FORMAT, SCHEMA, SHAPED
from forerun.server.protocols.errors import invalid
from forerun.server.protocols.fields import Object, WritingFields
from forerun.server.protocols.unsupported import UNSUPPORTED

INVALID_GRAMMAR: Final = "invalid_grammar"
GBNF: Final = (
    'this is a grammar in GBNF, which is not supported: write it in Lark (rules such as start: "a" | b), or give a '
    "json_schema."
)
SCHEMA_AT: Final = {
    "response_format": "response_format.json_schema.schema", "structured_outputs": "structured_outputs.json",
}  # fmt: skip
SHAPES: Final = ("json", "regex", "choice", "grammar", "json_object")  # of structured_outputs
GUIDED: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
Pattern = Annotated[str, StringConstraints(min_length=1)]
Choices = Annotated[list[Pattern], Field(min_length=1, max_length=4096)]


class ShapedFields(WritingFields):
    """The fields of a request whose answer may have a given shape."""

    structured_outputs: Annotated[Object, WithJsonSchema(SHAPED)] | None = None
    grammar: str | None = None
    json_schema: Annotated[Object | bool, WithJsonSchema(SCHEMA)] | None = None
    guided_json: Object | str | None = None
    guided_regex: Pattern | None = None
    guided_choice: Choices | None = None
    guided_grammar: Pattern | None = None
    response_format: Annotated[Object, WithJsonSchema(FORMAT)] | None = None

    def shape(self) -> dict[str, Any]:
        """The arguments of `GenerationRequest` that these fields give.

        Raises:
            ApiError: one of the fields is invalid, or there are several.
        """
        found = {name: grammar for name, grammar in self._shapes() if grammar is not None}
        if len(found) > 1:
            raise invalid(f"{' and '.join(found)} both set the form of the answer: give one.", param=min(found))
        name, grammar = next(iter(found.items()), ("", None))
        has_schema = grammar is not None and grammar.kind == "json_schema"
        return {"grammar": grammar, "grammar_at": SCHEMA_AT.get(name, name) if has_schema else name}

    def _shapes(self) -> Iterator[tuple[str, Grammar | None]]:
        yield "response_format", format_grammar(self.response_format, "response_format")
        yield "structured_outputs", structured_grammar(self.structured_outputs or {})
        yield "grammar", written_grammar(self.grammar, "grammar") if self.grammar else None
        yield "json_schema", None if self.json_schema is None else schema_grammar(self.json_schema, "json_schema")
        for name in GUIDED:
            value = getattr(self, name)
            if value is not None:
                yield name, shape_grammar(name.removeprefix("guided_"), value, name)


def format_grammar(given: Any, param: str) -> Grammar | None:
    """The grammar of a response_format, or of text.format in the Responses API, whose schema is not nested."""
    if given is None:
        return None
    if not is_object(given):
        raise invalid(f"{param} has a value of the wrong type.", param=param)
    match given.get("type", "text"):
        case "text":
            return None
        case "json_object" if given.get("schema") is None:  # llama-server takes a schema here
            return Grammar.json_object()
        case "json_object" | "json_schema":
            nested = given.get("json_schema")
            schema = given.get("schema") if nested is None else nested.get("schema") if is_object(nested) else None
            if schema is None:
                raise invalid(f"{param} has no schema: put it at {param}.json_schema.schema.", param=param)
            return schema_grammar(schema, param)
        case other:
            raise invalid(
                f"{param}: the type {json.dumps(other)[:40]} is not supported: use text, json_object or json_schema.",
                param=param,
                code=UNSUPPORTED,
            )


def structured_grammar(given: Mapping[str, Any]) -> Grammar | None:
    """The grammar of vLLM's structured_outputs."""
    named = [name for name in given if given[name] is not None and name in SHAPES]
    if len(named) > 1:
        raise invalid("structured_outputs has several shapes: give one.", param="structured_outputs")
    if given.get("structural_tag") is not None:
        raise invalid(
            "structured_outputs: structural_tag is not supported: use tools, or a grammar.",
            param="structured_outputs",
            code=UNSUPPORTED,
        )
    return shape_grammar(named[0], given[named[0]], f"structured_outputs.{named[0]}") if named else None


def shape_grammar(name: str, value: Any, param: str) -> Grammar | None:
    """The grammar of one of SHAPES."""
    match name, value:
        case "json", str() | dict() | bool():
            return schema_grammar(value, param)
        case "regex", str():
            return Grammar.regex(value)
        case "choice", [str(), *_] if all(isinstance(text, str) for text in value):
            return Grammar.choice(value)
        case "grammar", str():
            return written_grammar(value, param)
        case "json_object", bool():
            return Grammar.json_object() if value else None
    raise invalid(f"{param} has a value of the wrong type.", param=param)


def schema_grammar(schema: Any, param: str) -> Grammar:
    """The grammar of a JSON schema, given as a value or as its text."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise invalid(f"{param}: this is not valid JSON.", param=param, code=INVALID_GRAMMAR) from None
    if not (is_object(schema) or schema is True):
        raise invalid(f"{param}: a JSON schema is an object or true.", param=param)
    try:
        return Grammar.json_schema(schema)
    except RecursionError:
        raise invalid(f"{param}: its parts are nested too deep.", param=param, code=INVALID_GRAMMAR) from None


def written_grammar(text: str, param: str) -> Grammar:
    """The grammar that a client wrote in Lark."""
    if "::=" in text:
        raise invalid(f"{param}: {GBNF}", param=param, code=INVALID_GRAMMAR)
    return Grammar.lark(text)


def is_object(value: Any) -> bool:
    return isinstance(value, dict)
