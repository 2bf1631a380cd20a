"""The ASGI app: the routes, and error handlers that give all errors one format."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

import forerun
from forerun.server.description import DescribedApi
from forerun.server.protocols.errors import ApiError, internal, invalid
from forerun.server.protocols.other_routes import no_method, no_route
from forerun.server.protocols.registered import error_body
from forerun.server.protocols.unsupported import UNSUPPORTED
from forerun.server.request_state import state_of
from forerun.server.routes import drafter, health, models, page, texts, tokens
from forerun.server.routes.answering import AnswerHook, HookFor
from forerun.server.work.served_models import ServedModels

MAX_PARAM_CHARACTERS: Final = 64
FAULTS: Final = {"missing": "missing_required_parameter", UNSUPPORTED: UNSUPPORTED}  # by pydantic error type
KINDS: Final = ("str", "int", "float", "bool")  # pydantic's names for the members of a union


class HoldingModels:
    """Keeps a request's model loaded until the answer is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with state_of(scope).held:
            await self._app(scope, receive, send)


def make_routes(served: ServedModels, hook_for: HookFor = lambda request: AnswerHook()) -> FastAPI:
    """The routes for the served models, without the gate.

    Args:
        hook_for: gives the hook of a request's answer, for a wrapper of this server.
    """
    app = DescribedApi(
        title="forerun",
        version=forerun.__version__,
        description="An OpenAI-compatible server that gives the same text for the same seed, whichever drafter runs.",
        docs_url=None,  # these pages would load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,  # a redirect's address would be built from the Host header
    )
    app.state.models = served
    app.add_middleware(HoldingModels)
    for router in (texts.writing_router(hook_for), models.router, tokens.router, health.router, drafter.router):
        app.include_router(router)
    if served.config.is_demo:
        app.include_router(drafter.demo_router)
    app.include_router(page.page_router())
    show_errors(app)
    return app


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
