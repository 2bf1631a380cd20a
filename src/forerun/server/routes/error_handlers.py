"""Handlers that give all errors of an app one format, with advice for routes of other servers."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from forerun.server.protocols.errors import ApiError, internal, invalid
from forerun.server.protocols.registered import error_body
from forerun.server.protocols.unsupported import UNSUPPORTED
from forerun.server.request_state import state_of

MAX_PARAM_CHARACTERS: Final = 64
FAULTS: Final = {"missing": "missing_required_parameter", UNSUPPORTED: UNSUPPORTED}  # by pydantic error type
KINDS: Final = ("str", "int", "float", "bool")  # pydantic's names for the members of a union
CHAT: Final = "chat is POST /v1/chat/completions"
TEXT: Final = "POST /v1/completions continues texts"
MODELS: Final = "GET /v1/models lists the models"
STATE: Final = "GET /v1/forerun describes model and drafter, GET /metrics counts requests"
NO_VECTORS: Final = "this server writes texts, and has no embeddings"
# By the last one or two parts of the path: routes of OpenAI, Anthropic, ollama, llama-server and vLLM.
INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("chat", "conversations", "assistants"), CHAT),
    **dict.fromkeys(("completion", "complete", "generate"), TEXT),
    **dict.fromkeys(("embedding", "embeddings", "embed", "rerank", "reranking", "score", "pooling"), NO_VECTORS),
    **dict.fromkeys(("models", "tags", "show", "ps"), MODELS),
    **dict.fromkeys(("slots", "server_info"), STATE),
    **dict.fromkeys(("tokenize",), "POST /tokenize turns texts into ids"),
    "detokenize": "POST /detokenize turns ids into text",
    "version": "the version is at GET /version",
    "docs": "GET /openapi.json describes the API",
    **dict.fromkeys(("healthz", "health", "live", "ping"), "GET /health checks the model, GET /livez the process"),
    **dict.fromkeys(("readyz", "ready"), "GET /ready shows whether requests are answered"),
}
OTHERWISE: Final = "GET /openapi.json lists the routes"
MAX_SHOWN: Final = 100  # characters of a path


def show_errors(app: FastAPI) -> None:
    """Add handlers to an app that give all its errors the same format."""
    for kind, handler in (
        (ApiError, show_api_error),
        (RequestValidationError, show_fault),
        (HTTPException, show_http_error),
        (Exception, show_failure),
    ):
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]


async def show_api_error(request: Request, error: ApiError) -> Response:
    request_id = state_of(request.scope).request_id
    body = error_body(error, path=request.scope["path"], request_id=request_id)
    return Response(body, status_code=error.status, headers=dict(error.headers()), media_type="application/json")


async def show_fault(request: Request, error: RequestValidationError) -> Response:
    """Report the first invalid field and what it needs.

    For a field with a union type pydantic reports an error per member. The most deeply nested one belongs to the type
    that the client most likely meant.
    """
    faults: Sequence[dict[str, Any]] = error.errors()
    first = place_of(faults[0]["loc"]) or ""
    fault = max((item for item in faults if (place_of(item["loc"]) or "").startswith(first)), key=depth_of)
    param = place_of(fault["loc"])
    code = FAULTS.get(fault["type"], "invalid_value")
    return await show_api_error(request, invalid(f"{param or 'The request'}: {fault['msg']}.", param=param, code=code))


def depth_of(fault: dict[str, Any]) -> int:
    return (place_of(fault["loc"]) or "").count(".")


def place_of(parts: Sequence[str | int]) -> str | None:
    """Path of an invalid field, such as messages.0.role, without members of unions; None if it is not a plain name."""
    named = [part for part in parts if isinstance(part, int) or (part.isidentifier() and is_field(part))]
    place = ".".join(str(part) for part in named if part != "body")
    return place if place and place.isascii() and len(place) <= MAX_PARAM_CHARACTERS else None


def is_field(part: str) -> bool:
    """False for the members of unions: pydantic's names of kinds, and names of classes."""
    return part not in KINDS and not part[0].isupper()


async def show_http_error(request: Request, error: HTTPException) -> Response:
    """Errors from the router itself: unknown paths and methods."""
    allow = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
    method = request.method
    path = request.scope["path"]
    code = HTTPStatus(error.status_code).phrase
    message = no_method(method, path, allow) if allow else no_route(method, path)
    code = code.lower().replace(" ", "_")
    return await show_api_error(request, ApiError(error.status_code, message, code=code, allow=allow))


async def show_failure(request: Request, error: Exception) -> Response:
    """An internal error, which the gate logs."""
    return await show_api_error(request, internal())


def no_route(method: str, path: str) -> str:
    """The error message for an unknown route."""
    names = path.strip("/").split("/")
    instead = INSTEAD.get("/".join(names[-2:])) or INSTEAD.get(names[-1], OTHERWISE)
    return f"no route {shown(method, path)} here; {instead}"


def no_method(method: str, path: str, allowed: str) -> str:
    """The error message for a method that the path does not support."""
    return f"no route {shown(method, path)} here; this path takes {allowed}"


def shown(method: str, path: str) -> str:
    return f"{method} {path if len(path) <= MAX_SHOWN else path[:MAX_SHOWN] + '...'}"
