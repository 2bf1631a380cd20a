"""Routes that require strict JSON, the schemas of their error answers, and access to the request's model."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from forerun.server.guard.strict_json import read_json
from forerun.server.protocols.errors import ErrorAnswer
from forerun.server.request_state import state_of
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service


def refusals(error_type: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Describes the error answers of a route."""
    return {
        "4XX": {"model": error_type, "description": "The request cannot be answered."},
        "5XX": {"model": error_type, "description": "The server cannot answer now."},
    }


REFUSALS: Final = refusals(ErrorAnswer)


def text_answer(keys: Sequence[str]) -> dict[int | str, dict[str, Any]]:
    """Describes the answer to a request for a text: one object with these keys, or events."""
    return {
        200: {
            "description": "The text, whole or as events.",
            "content": {
                "application/json": {"schema": {"type": "object", "required": [*keys]}},
                "text/event-stream": {  # the schema of one event
                    "schema": {"type": "object", "required": ["data"], "properties": {"data": {"type": "string"}}}
                },
            },
        }
    }


class StrictRequest(Request):
    """A request whose body is parsed once, as strict JSON."""

    _json: Any

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            config = models_of(self).config
            self._json = read_json(await self.body(), max_depth=config.max_json_depth)
        return self._json


class StrictRoute(APIRoute):
    """A route that parses the body first, so that invalid JSON gives our own error message."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            if request.method == "POST" and await strict.body():
                await strict.json()
            return await handle(strict)

        return handle_strictly


def models_of(request: Request) -> ServedModels:
    """The models that this app serves."""
    models = request.app.state.models
    assert isinstance(models, ServedModels), "the app was made with models"
    return models


async def service_for(request: Request, name: str | None) -> Service:
    """The model for a request. It is loaded if necessary, and stays loaded until the request is answered.

    Raises:
        ApiError: there is no model with this name, or it cannot be loaded.
    """
    models = models_of(request)
    service = models.find(name)
    await models.use(service, state_of(request.scope).held)
    return service
