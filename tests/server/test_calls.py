"""Calls of tools over a real socket: what must be called is called, and strict clients can read it."""

import json
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from jsonschema import validate

from forerun.core.drafter_config import Automatic
from tests.server.calling import SCHEMAS, WAYS, Way, ask
from tests.server.protocols.strict_clients import Read
from tests.server.serving import ENGINE, served
from tests.text.output.families import CHAT

THINKING = CHAT.replace("@", "{% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}{{ m.content }}")
THOUGHT = "{% if enable_thinking is defined and enable_thinking %}({% endif %}"
THINKING = THINKING.replace("{% endif %}", f"{THOUGHT}{{% endif %}}") if False else THINKING
NUM_LONG = 1000


@pytest.fixture(params=[*WAYS])
def way(request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param]


def check_calls(read: Read, *, is_cut: bool = False) -> None:
    """Every call has a known name and valid arguments; the last one may be cut off."""
    calls = read.calls[:-1] if is_cut else read.calls
    for _, name, arguments in calls:
        validate(json.loads(arguments), SCHEMAS[name])
    assert len({id_ for id_, _, _ in read.calls}) == len(read.calls)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("choice", ["required", "weather", "end-it"])
def test_one_call_that_must_be_made(client: httpx.Client, way: Way, choice: str, streams: bool) -> None:
    read = ask(client, way, ["weather", "end-it"], choice, streams=streams)
    ((_, name, _),) = read.calls
    assert choice in ("required", name)
    assert (read.content, read.end) == ("", way.ended)
    check_calls(read)


def test_several_calls(client: httpx.Client, way: Way) -> None:
    read = ask(client, way, ["end-it"], "required", is_parallel=True)
    assert len(read.calls) > 1
    check_calls(read, is_cut=read.end != way.ended)


def test_none_may_be_made(client: httpx.Client, way: Way) -> None:
    read = ask(client, way, ["end-it"], "none", limit=40)
    assert read.calls == []


def test_free_text_before_a_call_is_free(client: httpx.Client, way: Way) -> None:
    """With auto nothing is masked before a call: the text is the one that is written where no call may be made."""
    free = ask(client, way, ["end-it"], "none", limit=40, temperature=0)
    assert ask(client, way, ["end-it"], "auto", limit=40, temperature=0).content == free.content


def test_a_stream_says_what_the_whole_answer_says(client: httpx.Client) -> None:
    way = WAYS["chat"]
    whole, stream = (
        ask(client, way, ["weather", "end-it"], "required", is_parallel=True, seed=3, streams=streams)
        for streams in (False, True)
    )
    assert [call[1:] for call in whole.calls] == [call[1:] for call in stream.calls]
    assert (whole.content, whole.end) == (stream.content, stream.end)
