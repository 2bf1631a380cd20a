"""The routes that write texts, and those that count a prompt's tokens: one of each protocol."""

from typing import Any

from fastapi import APIRouter, Request, Response

from forerun.server.protocols.protocol import ApiProtocol
from forerun.server.protocols.registered import PROTOCOLS
from forerun.server.request_state import state_of
from forerun.server.routes.answering import Answering, HookFor
from forerun.server.routes.strict_route import StrictRoute, refusals, service_for, text_answer


def writing_router(hook_for: HookFor) -> APIRouter:
    """The routes of all protocols. Each answer has the hook that this function gives for its request."""
    router = APIRouter(route_class=StrictRoute)
    for protocol in PROTOCOLS:
        add_route(router, protocol, hook_for)
        add_counting(router, protocol)
    return router


def add_route(router: APIRouter, protocol: ApiProtocol, hook_for: HookFor) -> None:
    """Add a protocol's route for texts."""

    async def write_text(request: Request, body: Any) -> Response:
        wanted = protocol.read(body)
        service = await service_for(request, wanted.model)
        hook = hook_for(request)
        owner = state_of(request.scope).owner
        if not hook.is_admitted:
            service.require_room(owner)
        async with service.prompts.turn(owner):
            prompts = await service.prompts.read(wanted)
        return await Answering(request, wanted, prompts, service, protocol.writer, hook).respond()

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
        wanted = protocol.read(body)
        service = await service_for(request, wanted.model)
        async with service.prompts.turn(state_of(request.scope).owner):
            prompts = await service.prompts.read(wanted)
        return {"input_tokens": sum(len(prompt.ids) for prompt in prompts)}  # in Anthropic's form

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
