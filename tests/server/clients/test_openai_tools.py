"""The openai client calls tools, sends their results and reads objects, by chat completions and the Responses API."""

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.server.openai_matrix.ways import client_of
from tests.server.serving import Served

CITY = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": CITY}
TOOL = {"type": "function", "function": FUNCTION}
ASKED = [{"role": "user", "content": "What is the weather in Paris?"}]
ONE_CALL: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
MODEL = "any"


class Person(BaseModel):
    """What answers hold; a small model finds the end of each value."""

    name: Literal["Ada", "Grace"]
    is_old: bool


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with client_of(server, timeout=60) as made:
        yield made


def test_a_chat_calls_a_tool_and_goes_on_with_its_result(client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, tools=[TOOL], **ONE_CALL)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    final = client.chat.completions.create(
        model=MODEL, messages=[*ASKED, choice.message, result], tools=[TOOL], tool_choice="none", max_tokens=4
    )
    assert final.choices[0].message.tool_calls is None
    assert final.usage.prompt_tokens > answer.usage.prompt_tokens


def test_a_streamed_chat_puts_its_call_together(client: Any) -> None:
    with client.chat.completions.stream(model=MODEL, messages=ASKED, tools=[TOOL], **ONE_CALL) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert [call.function.arguments for call in message.tool_calls] == ['{"city": "Paris"}']


def test_a_chat_gives_an_object_of_the_wanted_class(client: Any) -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Person)
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_a_response_calls_a_tool_and_goes_on_with_its_result(client: Any) -> None:
    tool = {"type": "function", **FUNCTION}
    with client.responses.stream(model=MODEL, input=ASKED, tools=[tool], **ONE_CALL) as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    (call,) = response.output
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Paris"}')
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    final = client.responses.create(
        model=MODEL, input=[*ASKED, call.model_dump(), result], tools=[tool], tool_choice="none", max_output_tokens=4
    )
    assert final.output_text
    assert final.status == "incomplete"
    assert final.usage.input_tokens > response.usage.input_tokens


def test_a_response_gives_an_object_of_the_wanted_class(client: Any) -> None:
    assert isinstance(client.responses.parse(model=MODEL, input="Who?", text_format=Person).output_parsed, Person)
