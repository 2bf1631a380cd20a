"""Whatever a model writes, every protocol makes a body and a stream of it that are valid JSON in UTF-8."""

import json
import random
from typing import Any

import pytest
from fastapi.responses import JSONResponse

from forerun import Engine
from forerun.core.steps import FinishReason
from forerun.server.protocols import anthropic_messages, chat, completions, infill, responses
from forerun.server.protocols.answer import EventParser, PlainParser, id_maker
from forerun.server.protocols.infill import InfillRequest
from forerun.server.protocols.responses import ResponsesRequest
from forerun.text.output.known_formats import FORMATS
from forerun.text.output.parser import OutputParser
from forerun.text.output.traits import HERMES, CallFormat, TemplateTraits
from forerun.text.tokenizer import Tokenizer
from tests.marks import rest_slow
from tests.server.protocols.strict_clients import events_of
from tests.server.protocols.written import written
from tests.server.serving import ENGINE
from tests.text.output.families import FAMILIES, TOOLS
from tests.text.output.loose_families import LOOSE_FAMILIES
from tests.text.output.test_parser import traits_of
from tests.text.output.test_values import CODER, GLM

PATCH = {"type": "function", "function": {"name": "patch", "parameters": {"properties": {"input": {"type": "string"}}}}}
ODD = {"type": "function", "function": {"name": "my/tool", "parameters": {"properties": {"$a b": {}, "city": {}}}}}
GIVEN = [*TOOLS, PATCH, ODD]
SOURCE = ResponsesRequest(
    input="x", tools=[{"type": "custom", "name": "patch"}, {"type": "function", "name": "weather"}]
)
PROTOCOLS: dict[str, Any] = {
    "chat": (chat.PROTOCOL, None),
    "messages": (anthropic_messages.PROTOCOL, None),
    "responses": (responses.PROTOCOL, SOURCE),
    "completions": (completions.PROTOCOL, completions.CompletionRequest(prompt="x")),
    "infill": (infill.PROTOCOL, InfillRequest()),
}
FOUND: list[CallFormat] = [HERMES, CODER, GLM, *(format for _, format in FORMATS)]
OUTPUTS = [(name, text) for name, family in (FAMILIES | LOOSE_FAMILIES).items() for text, _ in family.outputs.values()]
PIECES = (
    r"\ud83d\ude00", r"\ud800", r"\udc00", r"\u12", r"\U0001f600", r"\x41", r"\/", "1e999", "-1e999", "NaN",
    "-Infinity", "Infinity", "null", "None", "true", "True", "001", "0x10", "1_000", "9" * 400, "'", '"', "\\", "{",
    "}", "[", "]", "(", ")", "=", ":", ",", " ", "\n", "\0", "\x7f", "\u2028", "\ufffd", "\U0001f600", "[" * 70,
    '{"a":' * 70, "<think>", "</think>", "weather", "get-time", "patch", "my/tool", "nobody", "city", "days", "$a b",
    "input", '{"city": "a"}', "['\\ud800']", "[1, None]", "call:", "functions.", "to=", "json", "name", "arguments",
    '"name": "weather"', '"arguments": {', "```json", "<tools>",
)  # fmt: skip


def random_text(rng: random.Random) -> tuple[TemplateTraits, str]:
    """A text of pieces of calls, or a damaged answer, and the traits of the template that it is for."""
    if rng.random() < 0.6:
        name, text = rng.choice(OUTPUTS)
        for _ in range(rng.randrange(4)):
            start = rng.randrange(len(text))
            num = rng.choice((0, 0, 1, 3))
            text = text[:start] + "".join(rng.choices(PIECES, k=rng.randrange(1, 3))) + text[start + num :]
        return traits_of(name), text
    format = rng.choice(FOUND)
    marks = [mark for mark in (*format.marks, format.first_mark) if mark]
    pieces = (*PIECES, *(marks * (1 + len(PIECES) // (2 * len(marks)))))
    thought = rng.choice((None, ("<think>", "</think>")))
    text = format.first_mark * rng.randrange(2) + "".join(rng.choices(pieces, k=rng.randrange(1, 40)))
    return TemplateTraits(tools_variable="tools", calls=format, thought=thought), text


def cut(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def require_json(value: Any) -> None:
    """A body can be sent, and read by a parser without extensions."""
    json.loads(JSONResponse(value).body.decode("utf-8"), parse_constant=pytest.fail)


def require_calls(whole: dict[str, Any]) -> None:
    """Calls that clients will make have arguments that are objects of valid JSON."""
    for choice in whole.get("choices", ()):
        if choice["finish_reason"] == "tool_calls":
            for call in choice["message"]["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                assert isinstance(arguments, dict)
                require_json(arguments)
    for item in whole.get("output", ()):
        if item["type"] == "function_call" and item["status"] == "completed":
            require_json(json.loads(item["arguments"]))
    if any(block.get("type") == "tool_use" for block in whole.get("content", ()) if isinstance(block, dict)):
        assert whole["stop_reason"] in ("tool_use", "max_tokens")


def check(name: str, numbers: range, tokenizer: Tokenizer) -> None:
    protocol, source = PROTOCOLS[name]
    for number in numbers:
        rng = random.Random(number)
        traits, text = random_text(rng)
        prompt = rng.choice(("", "<think>")) if traits.thought else ""
        finish = rng.choice((FinishReason.STOP, FinishReason.LENGTH))
        parser: EventParser = PlainParser(id_maker(""))
        if name not in ("completions", "infill"):
            parser = OutputParser(traits, tools=GIVEN, rendered_prompt=prompt, finds_calls=True)
        stream, whole = written(protocol, cut(text, rng), tokenizer, parser=parser, source=source, finish=finish)
        require_json(whole)
        require_calls(whole)
        for _, data in events_of(stream):
            if data != "[DONE]":
                require_json(json.loads(data, parse_constant=pytest.fail))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with Engine(ENGINE) as engine:
        return engine.tokenizer


@pytest.mark.parametrize("chunk", rest_slow([range(start, start + 500) for start in range(0, 10_000, 500)], 1), ids=str)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_random_texts(tokenizer: Tokenizer, name: str, chunk: range) -> None:
    check(name, chunk, tokenizer)
