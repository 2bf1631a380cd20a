"""The routes that write texts, and those that count a prompt's tokens: one of each protocol."""

from typing import Any

from fastapi import APIRouter, Request, Response

from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.registered import PROTOCOLS
from forerun.server.routes.answering import Answering, goes_on
from forerun.server.routes.strict_route import StrictRoute, owner_of, refusals, service_for, text_answer


def writing_router() -> APIRouter:
    """The routes of all protocols."""
    router = APIRouter(route_class=StrictRoute)
    for protocol in PROTOCOLS:
        add_route(router, protocol)
        add_counting(router, protocol)
    return router


def add_route(router: APIRouter, protocol: ApiProtocol) -> None:
    """Add a protocol's route for texts."""

    async def write_text(request: Request, body: Any) -> Response:
        asked = protocol.read(body)
        service = await service_for(request, asked.model)
        if not goes_on(request):
            service.require_room(owner_of(request))
        async with service.prompts.turn(owner_of(request)):
            read = await service.prompts.read(asked)
        return await Answering(request, asked, read, protocol.writer).respond()

    write_text.__annotations__["body"] = protocol.request
    for path in protocol.paths:
        router.add_api_route(
            path,
            write_text,
            methods=["POST"],
            response_class=Response,
            include_in_schema=path == protocol.paths[0],
            responses=text_answer(protocol.keys) | refusals(protocol.error_type),
            summary=protocol.summary,
            name=name_of(path),
        )


def add_counting(router: APIRouter, protocol: ApiProtocol) -> None:
    """Add a protocol's route that counts tokens, if it has one. It does not wait for other requests."""

    async def count_tokens(request: Request, body: Any) -> dict[str, Any]:
        asked = protocol.read(body)
        service = await service_for(request, asked.model)
        async with service.prompts.turn(owner_of(request)):
            read = await service.prompts.read(asked)
        return {"input_tokens": sum(map(len, read.ids))}  # in Anthropic's form

    count_tokens.__annotations__["body"] = protocol.request
    for path in protocol.counting_paths:
        router.add_api_route(
            path,
            count_tokens,
            methods=["POST"],
            include_in_schema=path == protocol.counting_paths[0],
            responses=refusals(protocol.error_type),
            summary="Count a prompt's tokens.",
            name=name_of(path),
        )


def name_of(path: str) -> str:
    return path.removeprefix("/").replace("/", "_")
