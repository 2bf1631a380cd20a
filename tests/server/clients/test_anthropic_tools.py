"""Anthropic's client counts tokens, streams, calls tools, sends their results and reads objects."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.server.serving import Served

pytestmark = pytest.mark.skipif(find_spec("anthropic") is None, reason="needs anthropic")
TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]},
}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
ONE_CALL: dict[str, Any] = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 64}
MODEL = "any"


class Answer(BaseModel):
    """What an answer holds."""

    sky: Literal["sunny", "cloudy"]
    is_warm: bool


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    import anthropic  # takes seconds, so only where these tests run

    own = {"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 60}
    with anthropic.Anthropic(**own, _strict_response_validation=True) as made:
        yield made


def test_a_message_streams_its_text(client: Any) -> None:
    with client.messages.stream(model=MODEL, messages=ASKED, system="Be short.", max_tokens=6) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert [block.text for block in message.content] == [text]
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 6)


def test_a_message_calls_a_tool_and_goes_on_with_its_result(client: Any) -> None:
    with client.messages.stream(model=MODEL, messages=ASKED, tools=[TOOL], **ONE_CALL) as stream:
        message = stream.get_final_message()
    (call,) = message.content
    assert (call.type, call.name, call.input, message.stop_reason) == (
        "tool_use",
        "weather",
        {"city": "Paris"},
        "tool_use",
    )
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    talk = [*ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    final = client.messages.create(model=MODEL, messages=talk, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=4)
    assert [block.type for block in final.content] == ["text"]


def test_counted_tokens_are_those_of_the_request(client: Any) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED, tools=[TOOL]).input_tokens
    usage = client.messages.create(model=MODEL, messages=ASKED, tools=[TOOL], max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_message_gives_an_object_of_the_wanted_class(client: Any) -> None:
    answer = client.messages.parse(model=MODEL, messages=ASKED, output_format=Answer, max_tokens=64)
    assert isinstance(answer.parsed_output, Answer)


def test_a_prompt_that_is_too_long_is_an_error_that_agents_know(client: Any) -> None:
    import anthropic

    long = [{"role": "user", "content": "word " * 5000}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > \d+ maximum"):
        client.messages.create(model=MODEL, messages=long, max_tokens=1)
