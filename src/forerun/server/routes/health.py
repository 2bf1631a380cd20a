"""GET /health, /livez, /ready and /metrics."""

from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from forerun.server.routes.strict_route import REFUSALS, models_of
from forerun.server.work.engine_thread import EngineState

LOADING: Final = "Loading model"
router = APIRouter(responses={"4XX": REFUSALS["4XX"]})


@router.get("/v1/health", include_in_schema=False)
@router.get("/health", responses={503: {"description": "The model is being loaded, or the engine has ended."}})
async def show_health(request: Request) -> JSONResponse:
    """200 once the model is loaded, as in llama-server."""
    models = models_of(request)
    if models.are_on_demand:  # each is loaded on its first request
        return JSONResponse({"status": "ok"})
    if models.first.thread.state is EngineState.ENDED:
        return unavailable("The engine has ended")
    return unavailable(LOADING) if models.first.is_loading else JSONResponse({"status": "ok"})


@router.get("/livez", responses={503: {"description": "The engine has ended."}})
async def show_liveness(request: Request) -> JSONResponse:
    """200 unless the engine has ended."""
    models = models_of(request)  # with several models, one whose engine has ended is loaded again
    is_dead = not models.are_on_demand and models.first.thread.state is EngineState.ENDED
    return JSONResponse({"status": "ended" if is_dead else "ok"}, status_code=503 if is_dead else 200)


@router.get("/ready", responses={503: {"description": "Not now: see status."}})
async def show_readiness(request: Request) -> JSONResponse:
    """200 if the model is loaded, its last pass succeeded, and requests are accepted."""
    state = models_of(request).state
    return JSONResponse({"status": state}, status_code=200 if state == EngineState.READY.value else 503)


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(models_of(request).metrics_page(), media_type=CONTENT_TYPE_LATEST)


def unavailable(message: str) -> JSONResponse:
    """An error in llama-server's format, so that scripts made for it know when to try again."""
    error = {"code": 503, "message": message, "type": "unavailable_error"}
    return JSONResponse({"error": error}, status_code=503)
