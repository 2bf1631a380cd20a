"""The parts of a protocol: its paths, its request, and the writers of its answers and errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from forerun.server.protocols.answer import MakeWriter
from forerun.server.protocols.errors import ApiError, ErrorAnswer, openai_error
from forerun.server.protocols.generation_request import GenerationRequest
from forerun.server.protocols.sse import Body, data_event


def openai_event(error: ApiError, request_id: str) -> bytes:
    """The event of an error that ends a stream in OpenAI's format."""
    return data_event(openai_error(error, request_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiProtocol:
    """One way to ask for texts over HTTP.

    Args:
        summary: describes its route.
        paths: of its route; the first one is described.
        request: the body.
        read: turns the body into a request to the engine; raises ApiError.
        writer: makes a writer of an answer.
        keys: keys of a whole answer.
        error: the body of an error, with the request's id.
        error_event: the event of an error, for a stream that has lost its writer.
        error_type: describes the body of an error.
        counting_paths: of its route that counts the tokens of a request's prompt, if it has one.
    """

    summary: str
    paths: Sequence[str]
    request: type[BaseModel]
    read: Callable[[Any], GenerationRequest]
    writer: MakeWriter
    keys: Sequence[str]
    error: Callable[[ApiError, str], Body] = openai_error
    error_event: Callable[[ApiError, str], bytes] = openai_event
    error_type: type[BaseModel] = ErrorAnswer
    counting_paths: Sequence[str] = ()

    @property
    def all_paths(self) -> Sequence[str]:
        return (*self.paths, *self.counting_paths)
