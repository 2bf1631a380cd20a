"""GET /v1/models, /version, /props and /tokenizer_info."""

from typing import Any

from fastapi import APIRouter, Request

import forerun
from forerun.server.routes.strict_route import REFUSALS, models_of, service_for
from forerun.server.work.served_models import ServedModels
from forerun.server.work.service import Service

router = APIRouter(responses=REFUSALS)


@router.get("/models", include_in_schema=False)
@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The models that are served; the list `models` is llama-server's."""
    models = models_of(request)
    data = [about(models, service) for service in models.services]
    return {"object": "list", "data": data, "models": [{"name": item["id"], "model": item["id"]} for item in data]}


@router.get("/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}")
async def show_model(request: Request, name: str) -> dict[str, Any]:
    """The model with this name."""
    models = models_of(request)
    return about(models, models.find(name, is_exact=True))


@router.get("/version")
async def show_version() -> dict[str, str]:
    """forerun's version."""
    return {"version": forerun.__version__}


@router.get("/props")
async def show_props(request: Request, model: str | None = None) -> dict[str, Any]:
    """The model's context and chat template, as in llama-server. Without a name, those of the first model."""
    service = await service_for(request, model)
    engine = service.engine
    return {
        "default_generation_settings": {"n_ctx": engine.max_length},
        "total_slots": 1,
        "model_alias": service.model_name,
        "chat_template": "",
        **template_parts(service),
        "build_info": f"forerun-{forerun.__version__}",
    }


@router.get("/tokenizer_info")
async def show_tokenizer(request: Request, model: str | None = None) -> dict[str, Any]:
    """The special tokens and the chat template, as in vLLM: lm-evaluation-harness then asks this server for ids."""
    service = await service_for(request, model)
    return {"bos_token": None, "eos_token": None, "chat_template": None, **template_parts(service)}


def template_parts(service: Service) -> dict[str, Any]:
    """The source of the chat template, and the special tokens that it may use; empty if there is no template."""
    template = service.engine.tokenizer.chat_template
    return {} if template is None else {"chat_template": template.source, **template.special_tokens}


def about(models: ServedModels, service: Service) -> dict[str, Any]:
    """The model in OpenAI's format, with vLLM's max_model_len and, if there are several, llama-server's status."""
    told = {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "forerun",
    }
    if models.are_on_demand:
        told["status"] = {"value": models.state_of(service)}
    if service.is_loaded or not models.are_on_demand:
        told["max_model_len"] = service.engine.max_length
    return told
