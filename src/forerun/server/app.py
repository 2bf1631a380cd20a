"""The ASGI app: routes behind the gate, and errors in one form."""

from collections.abc import Sequence
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

import forerun
from forerun.server.description import DescribedApi
from forerun.server.guard.gate import App, Gate
from forerun.server.protocol.errors import ApiError, internal, invalid
from forerun.server.protocol.other_routes import no_method, no_route
from forerun.server.protocol.unsupported import UNSUPPORTED
from forerun.server.routes import chat, completions, drafter, health, models, page, tokens
from forerun.server.work.served_models import ServedModels

MAX_PARAM_CHARACTERS: Final = 64
FAULTS: Final = {"missing": "missing_required_parameter", UNSUPPORTED: UNSUPPORTED}  # pydantic's names of faults
KINDS: Final = ("str", "int", "float", "bool")  # as pydantic names the members of a union


class HoldingModels:
    """Keeps the model that a request asks for until its answer is sent; what is kept is in the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            scope.setdefault("state", {})["held"] = held
            await self._app(scope, receive, send)


def make_app(served: ServedModels, *, is_loopback: bool) -> App:
    """The app of what is served, behind the gate.

    Args:
        is_loopback: it can be reached from this machine only, so that requests must name this machine as their host.
    """
    return Gate(make_routes(served), served.config, is_loopback=is_loopback)


def make_routes(served: ServedModels) -> FastAPI:
    """The routes of what is served, for requests that passed the gate."""
    app = DescribedApi(
        title="forerun",
        version=forerun.__version__,
        description="An OpenAI-compatible server that gives the same text for the same seed, whichever drafter runs.",
        docs_url=None,  # these pages would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect would be put together from the Host header
    )
    app.state.models = served
    app.add_middleware(HoldingModels)
    for router in (chat.router, completions.router, models.router, tokens.router, health.router, drafter.router):
        app.include_router(router)
    if served.config.is_demo:
        app.include_router(drafter.demo_router)
    app.include_router(page.page_router())
    show_errors(app)
    return app


def show_errors(app: FastAPI) -> None:
    """Have every error of an app in the one form."""
    for kind, handler in (
        (ApiError, show_api_error),
        (RequestValidationError, show_fault),
        (HTTPException, show_http_error),
        (Exception, show_failure),
    ):
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]


async def show_api_error(request: Request, error: ApiError) -> Response:
    request_id = request.scope["state"]["request_id"]
    return Response(
        error.json(request_id), status_code=error.status, headers=dict(error.headers()), media_type="application/json"
    )


async def show_fault(request: Request, error: RequestValidationError) -> Response:
    """The first field that is wrong, by its place, and what is needed there.

    Of a field that may be of several kinds, each has a fault: the innermost is of the kind that was meant.
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
    """Where a fault is, such as messages.0.role; None where that is no plain name. Kinds of a union are left out."""
    named = [part for part in parts if isinstance(part, int) or (part.isidentifier() and part not in KINDS)]
    place = ".".join(str(part) for part in named if part != "body")
    return place if place and place.isascii() and len(place) <= MAX_PARAM_CHARACTERS else None


async def show_http_error(request: Request, error: HTTPException) -> Response:
    """What the router itself refuses: unknown paths and methods."""
    allow = (error.headers or {}).get("allow") or (error.headers or {}).get("Allow")
    method, path, code = request.method, request.scope["path"], HTTPStatus(error.status_code).phrase
    message = no_method(method, path, allow) if allow else no_route(method, path)
    code = code.lower().replace(" ", "_")
    return await show_api_error(request, ApiError(error.status_code, message, code=code, allow=allow))


async def show_failure(request: Request, error: Exception) -> Response:
    """A failure of ours; the gate logs it."""
    return await show_api_error(request, internal())
