"""Calls of tools over a real socket: what must be called is called, and strict clients can read it."""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from jsonschema import validate

from forerun.core.drafter_config import Automatic
from tests.marks import rest_slow
from tests.server.calling import SCHEMAS, WAYS, Way, ask
from tests.server.protocols.strict_clients import Read
from tests.server.serving import ENGINE, served
from tests.text.output.families import CHAT, FAMILIES

THINKING = CHAT.replace("@", "{% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}{{ m.content }}") + (
    "{% if enable_thinking is defined and enable_thinking %}({% endif %}"
)  # thoughts stand in parentheses
CALL_FAMILIES = ["qwen3", "qwen3_coder", "glm", "llama3", "mistral_list", "mistral_args", "deepseek", "granite"]
DRAFTERS = ("none", "draft_model", "recycling", "prompt_lookup")


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


@pytest.mark.parametrize("seeds", rest_slow([range(1), range(1, 3)], 1), ids=str)
@pytest.mark.parametrize("family", CALL_FAMILIES)
def test_every_familys_form_of_calls(family: str, seeds: range) -> None:
    template = re.sub(
        r"(?:<think>|\[THINK\])(\\n|\n)*", "(", FAMILIES[family].template
    )  # thoughts that a random model can end
    template = re.sub(r"(\\n|\n)*(?:</think>|\[/THINK\])(\\n|\n)*", ")", template)
    with served(replace(ENGINE, chat_template=template)) as server, server.client() as client:
        more = {"temperature": 1, "logit_bias": {end_of_thoughts(client): 6}}
        for seed in seeds:
            read = ask(client, WAYS["chat"], ["end-it", "weather"], "end-it", limit=300, seed=seed, **more)
            assert [(name, read.content, read.end) for _, name, _ in read.calls] == [("end-it", "", "tool_calls")]
            check_calls(read)


@pytest.fixture(scope="module")
def thinking() -> Iterator[httpx.Client]:
    with served(replace(ENGINE, chat_template=THINKING)) as running, running.client() as made:
        yield made


def end_of_thoughts(client: httpx.Client) -> str:
    """The token of a closing parenthesis."""
    body = {"prompt": ")", "add_special_tokens": False}
    return str(client.post("/tokenize", json=body).json()["tokens"][0])


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_call_behind_thoughts(thinking: httpx.Client, seed: int, is_open: bool) -> None:
    """A round of several tokens holds the end of a thought and the start of a call."""
    read = ask(
        thinking, WAYS["chat"], ["end-it"], "required", seed=seed, temperature=1, limit=300,
        logit_bias={end_of_thoughts(thinking): 4}, chat_template_kwargs={"enable_thinking": is_open},
    )  # fmt: skip
    ((_, name, _),) = read.calls
    assert (name, read.content, read.end) == ("end-it", "", "tool_calls")
    assert read.reasoning or not is_open
    check_calls(read)


@pytest.mark.parametrize("seeds", rest_slow([range(4), range(4, 12)], 1), ids=str)
@pytest.mark.parametrize("streams", [False, True])
def test_a_stop_text_within_thoughts_stops_nothing(thinking: httpx.Client, streams: bool, seeds: range) -> None:
    more = {"chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {end_of_thoughts(thinking): 4}}
    num_stopped = 0
    for seed in seeds:
        more |= {"seed": seed, "temperature": 1, "limit": 60, "streams": streams}
        plain = ask(thinking, WAYS["chat"], [], "none", **more)
        for stop in {*plain.reasoning} - {*plain.content}:
            stopped = ask(thinking, WAYS["chat"], [], "none", **more, stop=[stop])
            assert (stopped.reasoning, stopped.content, stopped.end) == (plain.reasoning, plain.content, plain.end)
            num_stopped += plain.content != ""
            break
        for stop in {*plain.reasoning} & {*plain.content} - {" ", "\n"}:
            stopped = ask(thinking, WAYS["chat"], [], "none", **more, stop=[stop])
            assert (stopped.reasoning, stopped.content) == (plain.reasoning, plain.content.partition(stop)[0])
            break
    assert num_stopped


@pytest.mark.parametrize("streams", [False, True])
def test_the_same_holds_for_messages(thinking: httpx.Client, streams: bool) -> None:
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 0, "limit": 20, "streams": streams}
    plain = ask(thinking, WAYS["messages"], [], "none", **more)
    stopped = ask(thinking, WAYS["messages"], [], "none", **more, stop_sequences=[plain.reasoning[5]])
    assert (stopped.reasoning, stopped.end) == (plain.reasoning, "max_tokens")


BUDGETS = (
    ("chat", lambda most: {"thinking_budget_tokens": most}),
    ("chat", lambda most: {"reasoning_budget_tokens": most}),
    ("chat", lambda most: {"thinking_token_budget": most}),
    ("chat", lambda most: {"thinking": {"type": "enabled", "budget_tokens": most}}),
    ("chat", lambda most: {"reasoning": {"max_tokens": most}}),
    ("messages", lambda most: {"thinking": {"type": "enabled", "budget_tokens": most}}),
)


@pytest.mark.parametrize(("way", "budget"), BUDGETS)
def test_a_budget_for_thoughts(thinking: httpx.Client, way: str, budget: Callable[[int], dict[str, Any]]) -> None:
    more = {"temperature": 0, "limit": 40}
    if way == "chat":
        more["chat_template_kwargs"] = {"enable_thinking": True}
    else:
        more |= budget(-1)
    assert not ask(thinking, WAYS[way], [], "none", **more).content, "the thought goes on without a budget"
    read = ask(thinking, WAYS[way], [], "none", **more | budget(3))
    assert read.content
    assert read.reasoning
    body = {"prompt": read.reasoning, "add_special_tokens": False}
    assert len(thinking.post("/tokenize", json=body).json()["tokens"]) <= 6
    assert ask(thinking, WAYS[way], [], "none", **more | budget(0)).reasoning == ""


def test_the_servers_budget_holds_where_a_request_sets_none() -> None:
    engine = replace(ENGINE, chat_template=THINKING, chat_template_kwargs={"enable_thinking": True})
    more = {"temperature": 0, "limit": 40}
    with served(engine, max_thought_tokens=3) as server, server.client() as client:
        for way in WAYS.values():
            read = ask(client, way, [], "none", **more)
            assert read.reasoning
            assert read.content
        own = {"reasoning": {"max_tokens": 30}}
        longer = ask(client, WAYS["responses"], [], "none", **more, **own)
        assert len(longer.reasoning) > len(read.reasoning)
        assert longer.content
        unlimited = {"thinking": {"type": "enabled", "budget_tokens": -1}}
        assert not ask(client, WAYS["messages"], [], "none", **more, **unlimited).content


@pytest.mark.parametrize("value", ["8", -2, 1.5, True])
def test_other_budgets_are_refused(thinking: httpx.Client, value: Any) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for path, fields in (
        ("/v1/chat/completions", {"thinking_budget_tokens": value}),
        ("/v1/chat/completions", {"reasoning": {"max_tokens": value}}),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": value}}),
    ):
        answer = thinking.post(path, json=body | fields)
        assert answer.status_code == 400, fields
        assert next(iter(fields)) in answer.text


WEATHER_FORMAT = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMAS["weather"]}}
SHAPES = [
    ({"response_format": {"type": "json_object"}}, None),
    ({"response_format": WEATHER_FORMAT}, "weather"),
    ({"structured_outputs": {"regex": "[ab]{3,5}x"}}, "[ab]{3,5}x"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"grammar": 'start: "a" digits\ndigits: /[0-9]{4}/'}}, "a[0-9]{4}"),
]


@pytest.mark.parametrize(("fields", "expected"), SHAPES)
@pytest.mark.parametrize("is_open", [None, True, False])
def test_answers_of_a_given_form_behind_thoughts(
    client: httpx.Client, thinking: httpx.Client, fields: dict[str, Any], expected: str | None, is_open: bool | None
) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "seed": 1, **fields}
    if is_open is not None:
        client = thinking
        end = end_of_thoughts(client)
        body |= {"chat_template_kwargs": {"enable_thinking": is_open}, "logit_bias": {end: 6}, "temperature": 1}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]
    content = choice["message"]["content"]
    if expected is None:
        assert content.startswith("{")
    elif expected in SCHEMAS:
        validate(json.loads(content), SCHEMAS[expected])
    else:
        assert re.fullmatch(expected, content)
    assert choice["finish_reason"] == "stop" or expected is None


def test_calls_or_an_answer_of_a_given_form(client: httpx.Client) -> None:
    """Both come by chance."""
    found = set()
    for seed in range(12):
        read = ask(
            client, WAYS["chat"], ["end-it"], "auto", seed=seed, temperature=2, structured_outputs={"choice": ["<yes"]}
        )
        found.add((len(read.calls), read.content))
        check_calls(read)
    assert found == {(1, ""), (0, "<yes")}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("stop", "arguments", "ends"),
    [
        ("why", '{"', ("stop", "stop_sequence")),
        ("</tool_call>", '{"why": "lost"}', ("tool_calls", "tool_use")),
    ],
)
def test_a_call_that_a_stop_text_cuts_is_not_to_be_made(
    client: httpx.Client, stop: str, arguments: str, ends: tuple[str, str], streams: bool
) -> None:
    for name, field, end in (("chat", "stop", ends[0]), ("messages", "stop_sequences", ends[1])):
        more = {field: [stop], "temperature": 0}
        read = ask(client, WAYS[name], ["end-it"], "required", streams=streams, **more)
        assert read.end == end
        if (name, streams, stop) == ("messages", False, "why"):
            assert (read.calls, read.content) == ([], f"end-it {arguments}")  # no block could hold it as an object
        else:
            assert [found for _, _, found in read.calls] == [arguments]


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_a_thousand_calls_with_all_drafters(chunk: int) -> None:
    """All protocols, tools, ways to demand a call, and temperatures in turn; every answer has what was demanded."""
    rng = random.Random(chunk)
    with served(replace(ENGINE, drafter=Automatic())) as server, server.client() as client:
        for number in range(100):
            way = list(WAYS.values())[number % len(WAYS)]
            names = rng.sample([*SCHEMAS], rng.randint(1, len(SCHEMAS)))
            choice = rng.choice(["required", *names])
            is_parallel = rng.random() < 0.2
            more = {"seed": number, "forerun": {"drafter": rng.choice(DRAFTERS)}} if way is WAYS["chat"] else {}
            read = ask(
                client, way, names, choice, is_parallel=is_parallel, streams=rng.random() < 0.7, limit=250,
                temperature=rng.choice([0, 0.7, 1]), **more,
            )  # fmt: skip
            assert read.calls
            assert {name for _, name, _ in read.calls} <= (set(names) if choice == "required" else {choice})
            assert read.end == way.ended or is_parallel
            check_calls(read, is_cut=read.end != way.ended)
