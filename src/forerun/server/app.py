"""The ASGI app: the routes of the served models."""

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

import forerun
from forerun.server.openapi import DescribedApi
from forerun.server.request_state import state_of
from forerun.server.routes import drafter, health, models, page, texts, tokens
from forerun.server.routes.answering import AnswerHook, HookFor
from forerun.server.routes.error_handlers import show_errors
from forerun.server.work.served_models import ServedModels


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
