"""The parts of an answer, in the order in which the model writes them."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the model's thoughts, without their marks."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool call begins. Calls are numbered from 0 within an answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments; all pieces joined are the JSON text of an object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call is complete."""

    index: int


OutputEvent: TypeAlias = Reasoning | Content | CallStarted | CallArguments | CallEnded
