"""The engine's own call for a text, the last form of a request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.core.config import SamplingParams
from forerun.core.grammar import Grammar
from forerun.server.protocols.answer import EventParser, MakeId, PlainParser
from forerun.text.output.thoughts import ThoughtMarks


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt as the model reads it, and the form in which the model answers it.

    Args:
        ids: the token ids.
        text: of a conversation, as formatted by the chat template.
        messages: of a conversation, in OpenAI's form.
        echo: the text of the prompt, if the answer begins with it.
        make_parser: makes a parser of an answer's text, given a function that makes ids.
        grammar: the form that the answer must have.
        shown_tokens: special tokens that the parser needs in the text.
        thoughts: the marks of thoughts in the answer, in which stop texts do not count.
        max_thought_tokens: see `SamplingParams`.
        end_ids: tokens that end the answer, besides the model's own.
        prediction: ids of a text that the answer may resemble.
        ignored: names of the request's fields that have no effect on this model.
    """

    ids: Sequence[int]
    text: str = ""
    messages: Sequence[Mapping[str, Any]] = ()
    echo: str = ""
    make_parser: Callable[[MakeId], EventParser] = PlainParser
    grammar: Grammar | None = None
    shown_tokens: Sequence[str] = ()
    thoughts: ThoughtMarks | None = None
    max_thought_tokens: int | None = None
    end_ids: Sequence[int] = ()
    prediction: Sequence[int] = ()
    ignored: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """One text to write; see `Engine.stream`.

    Args:
        only_reads: read the prompt and write nothing.
        shows_progress: events tell how much of the prompt is read.
        times_plain: time plain rounds after the text, if the speedup estimate needs more and no request waits.
    """

    prompt: Prompt
    params: SamplingParams
    drafter: str | None = None
    owner: str = ""
    only_reads: bool = False
    shows_progress: bool = False
    times_plain: bool = False

    @property
    def max_tokens(self) -> int:
        """Tokens of the prompt, and the most that may be written."""
        return len(self.prompt.ids) + (self.params.max_new_tokens or 0)
