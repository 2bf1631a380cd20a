"""Reads outputs with the parser, for tests of it."""

from collections.abc import Sequence

from forerun.text.output.events import CallArguments, CallEnded, CallStarted, Content, OutputEvent, Reasoning
from forerun.text.output.parser import OutputParser
from forerun.text.output.traits import TemplateTraits
from tests.text.output.families import TOOLS


def read(traits: TemplateTraits, pieces: Sequence[str], *, prompt: str = "", finds_calls: bool = True) -> list[object]:
    """What the parser reads: texts, ("thought", text), and (name, arguments), with "cut" where a call has no end."""
    parser = OutputParser(
        traits, tools=TOOLS, rendered_prompt=prompt, finds_calls=finds_calls, make_id=lambda num: "i" * num
    )
    events = [event for piece in pieces for event in parser.feed(piece)]
    return joined(events + parser.finish())


def joined(events: Sequence[OutputEvent]) -> list[object]:
    found: list[object] = []
    for event in events:
        last = found[-1] if found else None
        match event:
            case Content(text):
                found[-1:] = [last + text] if isinstance(last, str) else [*found[-1:], text]
            case Reasoning(text):
                is_same = isinstance(last, tuple) and last[0] == "thought"
                found[-1:] = [("thought", last[1] + text)] if is_same else [*found[-1:], ("thought", text)]
            case CallStarted(index, id_, name):
                assert id_ in ("call_" + "i" * 24, "i" * 9)
                assert index == sum(isinstance(part, list | tuple) and part[0] != "thought" for part in found)
                found.append([name, ""])
            case CallArguments(_, text):
                assert isinstance(last, list)
                last[1] += text
            case CallEnded():
                assert isinstance(last, list)
                found[-1] = tuple(last)
    return [(*part, "cut") if isinstance(part, list) else part for part in found]
