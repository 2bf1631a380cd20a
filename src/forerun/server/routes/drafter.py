"""GET /v1/forerun: the model and its drafter, for the page; in demo mode also a route that kills the drafter."""

import os
import signal
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request

import forerun
from forerun.checkpoints.short_names.local import model_that_gains
from forerun.server.protocols.errors import ApiError
from forerun.server.routes.strict_route import REFUSALS, service_for

router = APIRouter(responses=REFUSALS)
demo_router = APIRouter(responses=REFUSALS)


@router.get("/v1/forerun")
async def show_drafter(request: Request, model: str | None = None) -> dict[str, Any]:
    """The model, its drafter, whether guesses made its newest measured answer faster (null: none was measured), and its
    default sampling. Without a name, those of the first model."""
    service = await service_for(request, model)
    engine = service.engine
    sampling = asdict(engine.default_sampling)
    sampling["logit_bias"] = dict(sampling["logit_bias"])
    return {
        "model": service.model_name,
        "drafter": service.drafter_name,
        "drafters": list(dict.fromkeys((service.drafter_name, *engine.drafters))),
        "max_length": engine.max_length,
        "sampling": sampling,
        "gained": service.gained,
        "advice": model_that_gains(engine.spec.num_parameters) if service.gained is False else "",
        "drafter_process": service.config.is_demo and engine.drafter_pid is not None,
        "version": forerun.__version__,
    }


@demo_router.post("/v1/forerun/kill-drafter")
async def kill_drafter(request: Request, model: str | None = None) -> dict[str, bool]:
    """Kill the drafter's process. The engine restarts it; the text continues without a pause."""
    pid = (await service_for(request, model)).engine.drafter_pid
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return {"killed": True}
    raise ApiError(409, "No drafter runs in a separate process.", code="no_drafter_process")
