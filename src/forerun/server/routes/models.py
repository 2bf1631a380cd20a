"""GET /v1/models and /version."""

from typing import Any

from fastapi import APIRouter, Request

import forerun
from forerun.server.routes.strict_route import REFUSALS, service_of
from forerun.server.work.service import Service

router = APIRouter(responses=REFUSALS)


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The one model that is served."""
    return {"object": "list", "data": [about(service_of(request))]}


@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """The model of this name."""
    service = service_of(request)
    service.require_model(name)
    return about(service)


@router.get("/version")
async def show_version() -> dict[str, str]:
    """forerun's version."""
    return {"version": forerun.__version__}


def about(service: Service) -> dict[str, Any]:
    """The model as OpenAI's list has it, with vLLM's max_model_len."""
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "forerun",
        "max_model_len": service.engine.max_length,
    }
