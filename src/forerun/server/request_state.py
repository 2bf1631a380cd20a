"""State that travels with a request, from the gate to the end of its answer."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from starlette.types import Scope

STATE: Final = "forerun.state"  # key of an ASGI scope


def cannot_abort() -> None:
    """Do nothing. Used where a connection cannot be closed from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """State of one request.

    Args:
        owner: derived from the request's key; empty if none is needed.
        request_id: in the headers of the answer, in errors and in the log.
        abort: closes the client's connection at once.
        held: closed when the answer is sent; keeps the request's model loaded.
    """

    owner: str
    request_id: str
    abort: Callable[[], object] = cannot_abort
    held: ExitStack = field(default_factory=ExitStack)


def state_of(scope: Scope) -> RequestState:
    """The state of a request, which the gate has set."""
    state = scope[STATE]
    assert isinstance(state, RequestState), "requests pass the gate, or another setter of their state"
    return state
