"""Errors, and their bodies in OpenAI's format. Their messages are fixed, so they cannot leak internals."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from forerun.core.errors import ForerunError

TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
RETRIED: Final = (408, 409, 429, 503)  # worth a retry; without our header the openai client retries every 5xx
UNREAD: Final = (408, 413)  # the rest of the body is not read, so the connection cannot be reused


class ApiError(ForerunError):
    """A request that cannot be answered.

    Args:
        code: a short name for programs to check.
        param: the request's field that is wrong.
        retry_after_s: when to try again.
        allow: methods that the path supports, for status 405.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow

    def headers(self) -> Mapping[str, str]:
        """Whether and when to retry, the allowed methods, and whether the connection closes."""
        found = {"x-should-retry": "true" if self.status in RETRIED else "false"}
        if self.retry_after_s is not None:
            found["retry-after"] = str(self.retry_after_s)
        if self.allow is not None:
            found["allow"] = self.allow
        if self.status in UNREAD:
            found["connection"] = "close"
        return found


class ErrorDetail(BaseModel):
    """The fields of an error in OpenAI's format."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str


class ErrorAnswer(BaseModel):
    """An error in OpenAI's format."""

    error: ErrorDetail


def openai_error(error: ApiError, request_id: str) -> dict[str, Any]:
    """The body of an error in OpenAI's format."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    told = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
    return {"error": {**told, "request_id": request_id}}


class PromptTooLongError(ApiError):
    """A prompt that leaves no room for an answer.

    Args:
        num_tokens: of the prompt.
        max_length: most tokens of prompt and answer.
        param: the field that holds the prompt.
    """

    def __init__(self, num_tokens: int, max_length: int, *, param: str) -> None:
        super().__init__(
            400,
            f"This model's maximum context length is {max_length} tokens, and the prompt has {num_tokens}: shorten it.",
            code="context_length_exceeded",
            param=param,
        )
        self.num_tokens = num_tokens
        self.max_length = max_length


def invalid(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """An invalid request."""
    return ApiError(400, message, code=code, param=param)


def internal() -> ApiError:
    """An internal error; the server's log has its cause under the request's id."""
    return ApiError(
        500,
        "The server failed to answer this request: see its log for the cause, by the request id.",
        code="internal_error",
    )


def stopping() -> ApiError:
    """The server is shutting down."""
    return ApiError(503, "The server is shutting down: try again later.", code="shutting_down", retry_after_s=5)


def loading() -> ApiError:
    """The model is not loaded yet."""
    return ApiError(503, "The model is being loaded: try again in a moment.", code="model_loading", retry_after_s=2)
