"""Messages for unknown routes: routes of other servers, each with this server's equivalent."""

from collections.abc import Mapping
from typing import Final

CHAT: Final = "chat is POST /v1/chat/completions"
TEXT: Final = "POST /v1/completions continues texts"
MODELS: Final = "GET /v1/models lists the models"
STATE: Final = "GET /v1/forerun describes model and drafter, GET /metrics counts requests"
NO_VECTORS: Final = "this server writes texts, and has no embeddings"
# By the last one or two parts of the path: routes of OpenAI, Anthropic, ollama, llama-server and vLLM.
INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("chat", "conversations", "assistants"), CHAT),
    **dict.fromkeys(("completion", "complete", "generate"), TEXT),
    **dict.fromkeys(("embedding", "embeddings", "embed", "rerank", "reranking", "score", "pooling"), NO_VECTORS),
    **dict.fromkeys(("models", "tags", "show", "ps"), MODELS),
    **dict.fromkeys(("slots", "server_info"), STATE),
    **dict.fromkeys(("tokenize",), "POST /tokenize turns texts into ids"),
    "detokenize": "POST /detokenize turns ids into text",
    "version": "the version is at GET /version",
    "docs": "GET /openapi.json describes the API",
    **dict.fromkeys(("healthz", "health", "live", "ping"), "GET /health checks the model, GET /livez the process"),
    **dict.fromkeys(("readyz", "ready"), "GET /ready shows whether requests are answered"),
}
OTHERWISE: Final = "GET /openapi.json lists the routes"
MAX_SHOWN: Final = 100  # characters of a path


def no_route(method: str, path: str) -> str:
    """The error message for an unknown route."""
    names = path.strip("/").split("/")
    instead = INSTEAD.get("/".join(names[-2:])) or INSTEAD.get(names[-1], OTHERWISE)
    return f"no route {shown(method, path)} here; {instead}"


def no_method(method: str, path: str, allowed: str) -> str:
    """The error message for a method that the path does not support."""
    return f"no route {shown(method, path)} here; this path takes {allowed}"


def shown(method: str, path: str) -> str:
    return f"{method} {path if len(path) <= MAX_SHOWN else path[:MAX_SHOWN] + '...'}"
