"""The API's description, exact enough to be tested by: what it allows is answered, and what it does not is refused."""

import copy
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fastapi import FastAPI

from forerun.server.protocol.requests import KEY_PATTERN, MAX_TOKENS, TOKEN_IDS
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service

Schema: TypeAlias = dict[str, Any]
PUBLIC_PATHS: Final = ("/health", "/livez", "/ready")
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class DescribedApi(FastAPI):
    """An app whose description has the bounds of the one model that is served, once it is there.

    The models are its state's.
    """

    def openapi(self) -> Schema:
        """OpenAPI 3.1 as JSON."""
        models: ServedModels = self.state.models
        schema = copy.deepcopy(super().openapi())
        walk(schema, write_whole)
        walk(schema["paths"], write_errors_as_json)
        if models.config.api_keys:
            declare_key(schema)
        declare_names(schema, models.names)
        if not models.are_several and models.first.thread.engine is not None:
            declare_model(schema, models.first)
        return schema


def walk(node: Any, change: Callable[[Schema], None]) -> None:
    """Let `change` have every object of a description, outer ones first."""
    if isinstance(node, dict):
        change(node)
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        walk(inner, change)


def write_whole(node: Schema) -> None:
    """Write bounds of whole numbers as such: 9.2e+18 is a bound that readers round differently."""
    for name in BOUNDS:
        bound = node.get(name)
        if node.get("type") == "integer" and isinstance(bound, float):
            node[name] = int(bound)


def write_errors_as_json(node: Schema) -> None:
    """Errors are JSON also where the answer is something else."""
    for status in ("4XX", "5XX"):
        if status in node:
            node[status]["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}}


def declare_key(schema: Schema) -> None:
    """Say that a key is needed, and where it is not."""
    schema.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"key": []}]
    for path in PUBLIC_PATHS:
        for operation in schema["paths"][path].values():
            operation["security"] = []


def declare_names(schema: Schema, names: list[str]) -> None:
    """Say which models there are."""
    for described in schema["components"]["schemas"].values():
        if "model" in described.get("properties", {}):
            described["properties"]["model"] = {"enum": [*names, None], "title": "Model"}
    for path in schema["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in ("name", "model"):
                    parameter["schema"] = {"type": "string", "enum": names}


def declare_model(schema: Schema, service: Service) -> None:
    """Say which tokens, lengths and drafters there are."""
    engine, schemas = service.engine, schema["components"]["schemas"]
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
    drafters = list(dict.fromkeys((service.drafter_name, *engine.drafters)))
    schemas["ForerunOptions"]["properties"]["drafter"] = {"enum": [*drafters, None], "title": "Drafter"}


def numerals_below(limit: int) -> str:
    """A pattern of the decimal numerals from 0 to `limit` - 1, without leading zeros."""
    digits = str(limit - 1)
    found = ["0", *(f"[1-9][0-9]{{{length}}}" for length in range(len(digits) - 1)), digits]
    for place, digit in enumerate(digits):
        least = "1" if place == 0 else "0"
        if digit > least:
            found.append(f"{digits[:place]}[{least}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}")
    return f"^({'|'.join(found)})$"
