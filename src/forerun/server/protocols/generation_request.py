"""A request for texts, in one form for all protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from forerun.core.grammar import Grammar

Tool: TypeAlias = Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}
ToolChoice: TypeAlias = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools that the prompt describes, and those that the model may or must call.

    Args:
        shown: the tools in the prompt.
        choice: auto: it may call tools; none: it may not; required: it must.
        names: names of the tools that it may call; None: all of them.
        is_parallel: one answer may have several calls.
    """

    shown: Sequence[Tool] = ()
    choice: ToolChoice = "auto"
    names: frozenset[str] | None = None
    is_parallel: bool = True

    @property
    def callable(self) -> list[Tool]:
        """The tools that the answer may call."""
        if self.choice == "none":
            return []
        return [tool for tool in self.shown if self.names is None or tool["function"]["name"] in self.names]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation that the chat template formats.

    Args:
        messages: in OpenAI's form; content is a text, text parts or None.
        variables: the template's own variables.
        effort: how much the model should think, such as "low"; "none": not at all. None: the template's default.
        thinks: whether the model thinks before it answers. None: the template's default.
        max_thought_tokens: most tokens of thoughts; 0: none. None: the server's default.
        continues: the last message is an answer to continue.
    """

    messages: Sequence[Mapping[str, Any]]
    tool_use: ToolUse = ToolUse()
    variables: Mapping[str, Any] = field(default_factory=dict)
    effort: str | None = None
    thinks: bool | None = None
    max_thought_tokens: int | None = None
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTexts:
    """Texts to continue, or their token ids.

    Args:
        echoes: the answers begin with the prompts.
    """

    prompts: Sequence[str | Sequence[int]]
    echoes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """A gap between two texts, to be filled in.

    Args:
        files: names and texts of other files, for context.
    """

    prefix: str
    suffix: str
    files: Sequence[tuple[str, str]] = ()
    echoes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What a client wants to be written.

    Args:
        model: the name that the client gave.
        param: the request's field with the prompt, for errors.
        sampling: the fields of SamplingParams that the client gave; the others have the model's defaults.
        limit: most new tokens; None: as many as fit; 0: none, the prompt is only read.
        num_choices: texts per prompt.
        grammar: the form that the answer must have.
        grammar_at: the path of the field with the grammar, for errors.
        prediction: a text that the answer probably resembles.
        shows_progress: a stream tells how much of the prompt is read.
        shows_usage: a stream ends with the usage.
        shows_usage_so_far: every event has the usage so far.
        shows_details: every event has the rounds' trees and times.
        ignored: names of fields that have no effect.
        drafter: see `Engine.stream`; None: the server's own.
        source: the protocol's own request, for its writer.
    """

    prompt: Chat | PlainTexts | Middle
    param: str
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    num_choices: int = 1
    grammar: Grammar | None = None
    grammar_at: str = ""
    prediction: str = ""
    streams: bool = False
    shows_progress: bool = False
    shows_usage: bool = False
    shows_usage_so_far: bool = False
    shows_details: bool = False
    ignored: Sequence[str] = ()
    drafter: str | None = None
    source: Any = None
