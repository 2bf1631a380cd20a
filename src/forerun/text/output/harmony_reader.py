"""Reads gpt-oss's answers: messages that each have a channel, and calls also a recipient.

Source: docs/format.md of OpenAI's harmony.
"""

import re
from typing import Final, Protocol

from forerun.text.output.call_readers import CallSink, known_name
from forerun.text.output.json_text import read_value
from forerun.text.output.text_source import NotACallError, Step, TextSource, num_held

BEGINS: Final = ("<|start|>", "<|channel|>", "<|constrain|>", "to=", "assistant")
ENDS: Final = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
MESSAGE: Final = "<|message|>"
MAX_HEADER: Final = 512  # characters
CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^<]+)")


class HarmonySink(CallSink, Protocol):
    """Receives thoughts and content, too."""

    def abandon(self) -> None:
        """The call ends incomplete."""

    def think(self, text: str) -> None:
        """A piece of a thought."""

    def say(self, text: str) -> None:
        """A piece of content."""


def read_harmony(source: TextSource, sink: HarmonySink) -> Step[None]:
    """Read messages up to the end of the text."""
    while True:
        source.settle()
        header = ""
        try:
            yield from source.space()
            if not (yield from source.which(BEGINS)):
                raise NotACallError
            header = yield from source.before([MESSAGE], MAX_HEADER)
            source.take(len(MESSAGE))
        except NotACallError:  # text without a header
            assert source.anchor is not None, "the text can still be read again"
            source.at = source.anchor
            sink.say(source.take(len((yield from source.which(BEGINS)))))
        channel = CHANNEL.search(header)
        recipient = RECIPIENT.search(header)
        source.settle()
        if recipient is not None:
            yield from _read_call(source, sink, called_name(sink, recipient.group(1)))
        source.anchor = None
        is_thought = channel is not None and channel.group(1) == "analysis"
        while (said := (yield from _read_body(source))) is not None:
            (sink.think if is_thought else sink.say)(said)
        if source.is_over and not source.rest:
            return


def called_name(sink: CallSink, text: str) -> str:
    """The longest tool's name with which a recipient begins, else its first word."""
    fitting = [name for name in sink.schemas if text.startswith(name) and not text[len(name) :][:1].strip()]
    return max(fitting, key=len, default=(text.split() or [""])[0])


def _read_call(source: TextSource, sink: HarmonySink, recipient: str) -> Step[None]:
    """Read a call's arguments; if it is not a call, the message is read like others."""
    try:
        name = known_name(sink, recipient)
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise NotACallError
        sink.start(name)
        yield from read_value(source, sink.arguments)
        sink.end()
        yield from source.space()
    except NotACallError:
        if sink.is_open:
            sink.abandon()
        else:
            assert source.anchor is not None, "a call that was not begun can be read again"
            source.at = source.anchor


def _read_body(source: TextSource) -> Step[str | None]:
    """The next piece of a message's text; None after its end mark, or at the end of the text."""
    while True:
        rest = source.rest
        places = [(place, mark) for mark in ENDS if (place := rest.find(mark)) >= 0]
        place, mark = min(places, default=(len(rest), ""))
        if mark and place == 0:
            source.take(0 if mark in BEGINS else len(mark))
            return None
        num = place if mark or source.is_over else place - num_held(rest, ENDS)
        if num:
            return source.take(num)
        if source.is_over:
            return None
        yield
