"""Parses an answer while the model writes it, into thoughts, content, and tool calls."""

import re
import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from forerun.text.output.call_readers import CallSink, read_json_calls, read_named_call, read_section
from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent, Reasoning
from forerun.text.output.harmony_reader import read_harmony
from forerun.text.output.loose_readers import read_gemma_call, read_pythonic_calls
from forerun.text.output.tagged_reader import read_tagged_call
from forerun.text.output.text_source import SPACE, NotACallError, Step, TextSource, num_held, num_of_mark
from forerun.text.output.traits import PYTHON_TAG, CallFormat, TemplateTraits

ALPHANUMERICS: Final = string.ascii_letters + string.digits
HERMES_BEGINS: Final = ("<tools>", "```json")  # Hermes' models write these for <tool_call> by mistake
HERMES_ENDS: Final = ("</tools>", "```")
READERS: Final[Mapping[str, Callable[[TextSource, CallSink, CallFormat], Step[None]]]] = {
    "json": read_json_calls,
    "named": read_named_call,
    "tagged": read_tagged_call,
    "pythonic": read_pythonic_calls,
    "gemma": read_gemma_call,
}


def random_id(num: int) -> str:
    """A random text of `num` letters and digits."""
    return "".join(secrets.choice(ALPHANUMERICS) for _ in range(num))


class OutputParser:
    """Turns one answer's text, in pieces, into events. The events, with adjacent texts joined, do not depend on how the
    text is cut into pieces.

    White space around the marks of thoughts and calls is dropped. The opening mark of a thought counts only at the
    start of the answer, or at the end of the prompt; calls within a thought are thoughts. Text that looks like a call
    but is not one, or names no given tool, is content. An incomplete call has no `CallEnded`.

    Args:
        tools: as in OpenAI's API.
        rendered_prompt: the text that the chat template made, whose end may open a thought.
        finds_calls: False: only thoughts are separated; text that looks like calls is content.
        make_id: returns a text of the given number of letters and digits.
    """

    def __init__(
        self,
        traits: TemplateTraits,
        *,
        tools: Sequence[Mapping[str, Any]],
        rendered_prompt: str,
        finds_calls: bool,
        make_id: Callable[[int], str] = random_id,
    ) -> None:
        functions = [tool["function"] for tool in tools]
        self.schemas: Mapping[str, Mapping[str, Any]] = {
            function["name"]: function.get("parameters") or {} for function in functions if finds_calls
        }
        self.is_open = False
        self._traits = traits
        self._format = traits.call_format
        self._make_id = make_id
        self._finds_calls = bool(self.schemas)
        self._source = TextSource()
        self._events = list[OutputEvent]()
        self._num_calls = 0
        self._is_leading = False
        self._space = ""  # white space held back, since a call may follow
        self._reading = self._read(rendered_prompt.rstrip(SPACE))
        next(self._reading, None)

    def feed(self, text: str) -> list[OutputEvent]:
        """Add text; return the events that are certain now."""
        self._source.add(text)
        next(self._reading, None)
        return self._taken()

    def finish(self) -> list[OutputEvent]:
        """The remaining events, at the end of the answer."""
        self._source.is_over = True
        next(self._reading, None)
        self._reading.close()
        return self._taken()

    def _taken(self) -> list[OutputEvent]:
        found = self._events
        self._events = []
        return found

    # Methods that the readers call.

    def start(self, name: str) -> None:
        self.is_open = True
        self._space = ""
        self._source.anchor = None
        id_ = self._make_id(9) if self._traits.wants_short_ids else f"call_{self._make_id(24)}"
        self._events.append(CallStarted(self._num_calls, id_, name))

    def arguments(self, text: str) -> None:
        if text:
            self._events.append(CallArguments(self._num_calls, text))

    def end(self) -> None:
        self._events.append(CallEnded(self._num_calls))
        self._num_calls += 1
        self.is_open = False
        self._is_leading = True
        self._source.settle()

    def abandon(self) -> None:
        """The call stays incomplete: its events so far remain, and the following text is content."""
        if self._source.is_over:
            self.arguments(self._source.take(len(self._source.rest)))
        self._num_calls += 1
        self.is_open = False

    def think(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))

    def say(self, text: str) -> None:
        if self._is_leading:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._is_leading = False
        text = self._space + text
        said = text.rstrip(SPACE) if self._finds_calls else text
        self._space = text[len(said) :]
        if said:
            self._events.append(Content(said))

    # The parts of an answer.

    def _read(self, prompt: str) -> Step[None]:
        if self._traits.thought is not None:
            yield from self._read_thought(prompt, *self._traits.thought)
        if self._format.kind == "harmony":
            yield from read_harmony(self._source, self)
        elif self._finds_calls and (self._format.kind in ("json", "gemma") or not self._format.first_mark):
            yield from self._try("")  # a call may come without its mark
        yield from self._read_content()
        if self._space:
            self._events.append(Content(self._space))

    def _read_thought(self, prompt: str, begin: str, end: str) -> Step[None]:
        source = self._source
        if not prompt.endswith(begin):
            space = yield from source.space()
            if not (yield from source.which([begin])):
                self.say(space)
                return
            source.take(len(begin))
        is_leading = True
        while True:
            rest = source.rest
            thought, mark, _ = rest.partition(end)
            num_certain = len(thought) if mark else len(rest) - num_of_mark(rest, end)
            said = rest[:num_certain].rstrip(SPACE)
            text = said.lstrip(SPACE) if is_leading else said
            is_leading = is_leading and not text
            self.think(text)
            source.take(len(thought) + len(mark) if mark else len(said))
            if mark:
                self._is_leading = True
                return
            if source.is_over:
                self.think(source.take(len(source.rest)))
                return
            yield

    def _read_content(self) -> Step[None]:
        source = self._source
        begins = self._begins()
        mark_of_any = re.compile("|".join(map(re.escape, begins)) or "(?!)")
        while True:
            rest = source.rest
            if found := mark_of_any.search(rest):
                self.say(source.take(found.start()))
                yield from self._try(found.group())
                continue
            self.say(source.take(len(rest) if source.is_over else len(rest) - num_held(rest, begins)))
            if source.is_over:
                return
            yield

    def _try(self, begin: str) -> Step[None]:
        """Read calls after this mark; if there are none, the mark is content."""
        source = self._source
        num_before = self._num_calls
        source.settle()
        if begin != self._format.name_begin.strip():
            source.take(len(begin))
        try:
            yield from self._read_calls(begin)
        except NotACallError:
            if self.is_open:
                self.abandon()
            else:
                assert source.anchor is not None, "a call that was not begun can be read again"
                source.at = source.anchor
                if self._num_calls == num_before:
                    self.say(source.take(len(begin)))
        source.anchor = None

    def _begins(self) -> Sequence[str]:
        if not self._finds_calls:
            return ()
        format = self._format
        found = [format.section_begin.strip(), format.call_begin.strip()]
        if format.kind == "tagged":
            found.append(format.name_begin.strip())
        if format.kind == "json":
            found += HERMES_BEGINS
        if not format.first_mark:
            found.append(PYTHON_TAG)
        return tuple(dict.fromkeys(filter(None, found)))

    def _read_calls(self, begin: str) -> Step[None]:
        format = self._format
        source = self._source
        is_built_in = begin == PYTHON_TAG and (yield from source.peek()) not in "{["
        read_call = partial(READERS["pythonic" if is_built_in else format.kind], source, self, format)
        ends = (format.call_end.strip(), format.call_end.split("\n")[-1], *(HERMES_ENDS * (format.kind == "json")))
        skipped = "" if begin in ("", format.section_begin.strip()) else begin
        yield from read_section(source, format, read_call, tuple(filter(None, ends)), expects_begin=not skipped)
