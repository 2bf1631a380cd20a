"""The OpenAPI schema. It is exact enough for tests: valid requests are answered and all others are refused."""

import copy
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fastapi import FastAPI

from forerun.server.protocols.fields import KEY_PATTERN, MAX_TOKENS, TOKEN_IDS
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service

Schema: TypeAlias = dict[str, Any]
PUBLIC_PATHS: Final = ("/health", "/livez", "/ready")
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class DescribedApi(FastAPI):
    """An app whose schema includes the limits of the model, if only one is served and it is loaded.

    Reads the models from `app.state.models`.
    """

    def openapi(self) -> Schema:
        """The OpenAPI 3.1 schema."""
        models: ServedModels = self.state.models
        schema = copy.deepcopy(super().openapi())
        walk(schema, write_whole)
        walk(schema["paths"], write_errors_as_json)
        if models.config.api_keys:
            declare_key(schema)
        if models.are_several or models.config.requires_model_name:
            declare_names(schema, models.names)
        if not models.are_several and models.first.thread.engine is not None:
            declare_model(schema, models.first)
        return schema


def walk(node: Any, change: Callable[[Schema], None]) -> None:
    """Call `change` on every object in a schema, outer objects first."""
    if isinstance(node, dict):
        change(node)
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        walk(inner, change)


def write_whole(node: Schema) -> None:
    """Write bounds of integers as integers, since readers round a float bound such as 9.2e+18 differently."""
    for name in BOUNDS:
        bound = node.get(name)
        if node.get("type") == "integer" and isinstance(bound, float):
            node[name] = int(bound)


def write_errors_as_json(node: Schema) -> None:
    """Declare error answers as JSON, also on routes that otherwise answer in another format."""
    for status in ("4XX", "5XX"):
        if status in node:
            node[status]["content"] = {"application/json": next(iter(node[status]["content"].values()))}


def declare_key(schema: Schema) -> None:
    """Declare that a key is needed, except on the public paths."""
    schema.setdefault("components", {})["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer"},
        "plain_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    schema["security"] = [{"key": []}, {"plain_key": []}]
    for path in PUBLIC_PATHS:
        for operation in schema["paths"][path].values():
            operation["security"] = []


def declare_names(schema: Schema, names: list[str]) -> None:
    """List the names of the models."""
    for described in schema["components"]["schemas"].values():
        if "model" in described.get("properties", {}):
            described["properties"]["model"] = {"enum": [*names, None], "title": "Model"}
    for path in schema["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in ("name", "model"):
                    parameter["schema"] = {"type": "string", "enum": names}


def declare_model(schema: Schema, service: Service) -> None:
    """Declare the model's vocabulary size, maximum length and drafters, and whether it fills in middles."""
    engine = service.engine
    schemas = schema["components"]["schemas"]
    vocab_size = engine.spec.vocab_size

    def bound_prompt(node: Schema) -> None:
        if node.get("maxItems") == MAX_TOKENS:
            node["maxItems"] = engine.max_length - 1

    def bound_ids(node: Schema) -> None:
        if node.get("exclusiveMaximum") == TOKEN_IDS:
            node["exclusiveMaximum"] = vocab_size
        if KEY_PATTERN in node.get("patternProperties", {}):
            node["patternProperties"] = {numerals_below(vocab_size): node["patternProperties"][KEY_PATTERN]}
            node["additionalProperties"] = False

    walk(schemas, bound_ids)
    walk(schemas["CompletionRequest"], bound_prompt)
    if not service.prompts.fills_middles:
        schema["paths"].pop("/infill", None)
        schemas["CompletionRequest"]["properties"]["suffix"] = {"enum": ["", None], "title": "Suffix"}
    drafters = list(dict.fromkeys((service.drafter_name, *engine.drafters)))
    schemas["ForerunOptions"]["properties"]["drafter"] = {"enum": [*drafters, None], "title": "Drafter"}


def numerals_below(limit: int) -> str:
    """A regular expression for the decimal numbers from 0 to `limit` - 1 without leading zeros."""
    digits = str(limit - 1)
    found = ["0", *(f"[1-9][0-9]{{{length}}}" for length in range(len(digits) - 1)), digits]
    for place, digit in enumerate(digits):
        least = "1" if place == 0 else "0"
        if digit > least:
            found.append(f"{digits[:place]}[{least}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}")
    return f"^({'|'.join(found)})$"
