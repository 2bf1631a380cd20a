"""What answers hold beside their text: several choices, log-probabilities, counts, the client's own types and forms."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from forerun import Engine, SamplingParams
from forerun.core.config import seed_of_text
from tests.server.openai_matrix.ways import CHAT, MODEL, PROMPT, WAYS, Way, async_client_of, client_of
from tests.server.serving import ENGINE, Served

WARM: dict[str, Any] = {"temperature": 0.9, "seed": 11, "max_tokens": 8}
CHATS = [way for way in WAYS if way.api == "chat"]
COMPLETIONS = [way for way in WAYS if way.api == "completions"]


@pytest.fixture(scope="module")
def own() -> Iterator[Engine]:
    """The engine itself, to compare with."""
    with Engine(ENGINE) as engine:
        yield engine


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_choices_have_seeds_and_numbers_of_their_own(server: Served, way: Way) -> None:
    several = way.ask(server, **WARM, n=3)
    singly = [way.ask(server, **{**WARM, "seed": seed}) for seed in (seed_of_text(11, number) for number in range(3))]
    assert several.texts == [answer.texts[0] for answer in singly]
    assert len(set(several.texts)) > 1
    assert several.num_new == sum(answer.num_new for answer in singly)
    assert several.num_prompt == singly[0].num_prompt


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_token_has_its_logarithm(server: Served, own: Engine, way: Way) -> None:
    asked = {"logprobs": True, "top_logprobs": 2} if way.api == "chat" else {"logprobs": 2}
    answer = way.ask(server, **WARM, **asked)
    params = SamplingParams(temperature=0.9, seed=11, max_new_tokens=8, logprobs=2)
    steps = list(own.stream(CHAT if way.api == "chat" else PROMPT, params))
    assert answer.logprobs == pytest.approx([item.logprob for step in steps for item in step.logprobs], abs=1e-4)
    assert all(1 <= len(top) <= 3 for top in answer.top)
    if way.api == "completions":  # OpenAI's older form has the token itself among the alternatives
        assert all(logprob in top.values() for logprob, top in zip(answer.logprobs, answer.top, strict=True))


@pytest.mark.parametrize("way", CHATS, ids=str)
def test_the_newer_name_of_the_length_counts(server: Served, way: Way) -> None:
    assert way.ask(server, max_completion_tokens=5).num_new == 5
    assert way.ask(server, max_completion_tokens=4, max_tokens=9).num_new == 4


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
def test_a_completion_has_16_tokens_where_none_are_named(server: Served, way: Way) -> None:
    assert way.ask(server).num_new == 16


@pytest.mark.parametrize("way", COMPLETIONS, ids=str)
def test_prompts_are_texts_or_ids_and_may_be_echoed(server: Served, own: Engine, way: Way) -> None:
    ids = own.encode(PROMPT)
    plain = way.ask(server, max_tokens=6).texts
    for prompt in (ids, [PROMPT], [ids]):
        assert way.ask(server, max_tokens=6, prompt=prompt).texts == plain
    assert way.ask(server, max_tokens=6, prompt=[ids, ids], n=2).texts == plain * 4
    assert way.ask(server, max_tokens=6, echo=True).texts == [PROMPT + plain[0]]


@pytest.mark.parametrize("way", CHATS, ids=str)
def test_a_prediction_changes_no_text(server: Served, way: Way) -> None:
    plain = way.ask(server, max_tokens=24)
    predicted = way.ask(server, max_tokens=24, prediction={"type": "content", "content": plain.texts[0]})
    assert predicted.texts == plain.texts


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "system", "content": "Be brief."}, *CHAT],
        [{"role": "developer", "content": "Be brief."}, *CHAT],
        [*CHAT, {"role": "assistant", "content": "pass"}, {"role": "user", "content": "again", "name": "me"}],
        [{"role": "user", "content": [{"type": "text", "text": "def "}, {"type": "text", "text": "f("}]}],
    ],
    ids=["system", "developer", "turns", "parts"],
)
@pytest.mark.parametrize("way", CHATS, ids=str)
def test_messages_of_every_form_are_answered(server: Served, way: Way, messages: list[Any]) -> None:
    answer = way.ask(server, messages=messages, max_tokens=2, extra_body={"ignore_eos": True})
    assert (answer.num_new, answer.finishes) == (2, ["length"])


def test_counts_and_times_come_with_the_answer(server: Served) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_tokens": 8}
    with client_of(server) as client:
        whole = client.chat.completions.create(**asked)
        *pieces, last = list(client.chat.completions.create(**asked, stream=True))
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens in range(whole.usage.prompt_tokens + 1)
    assert whole.usage.completion_tokens_details.rejected_prediction_tokens == 0
    assert whole.usage.model_extra is not None
    assert whole.usage.model_extra["forerun"]["drafter"] == "draft_model"
    assert whole.model_extra is not None
    assert last.model_extra is not None
    assert last.choices[0].finish_reason == "length"
    assert last.model_extra["timings"].keys() == whole.model_extra["timings"].keys()  # without include_usage too
    assert last.model_extra["timings"]["predicted_n"] == 8
    assert not any("timings" in (piece.model_extra or {}) for piece in pieces)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(piece.choices[0].delta.role is None for piece in pieces[1:])


def test_models_are_listed_and_retrieved(server: Served) -> None:
    async def ask() -> list[Any]:
        async with async_client_of(server) as client:
            return [[model async for model in client.models.list()], await client.models.retrieve(MODEL)]

    with client_of(server) as client:
        listed = list(client.models.list())
        named = client.models.retrieve(MODEL)
    assert [model.id for model in listed] == [MODEL]
    assert listed[0] == named
    assert asyncio.run(ask()) == [listed, named]


def test_raw_and_streamed_responses_have_the_headers(server: Served) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_tokens": 2, "extra_headers": {"x-request-id": "a1"}}
    with client_of(server) as client:
        raw = client.chat.completions.with_raw_response.create(**asked)
        assert raw.headers["x-request-id"] == raw.request_id == raw.parse()._request_id == "a1"
        assert raw.headers["content-type"] == "application/json"
        with client.chat.completions.with_streaming_response.create(**asked, stream=True) as streamed:
            assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
            lines = [line for line in streamed.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: {") for line in lines[:-1])


def test_the_helper_for_streams_collects_the_answer(server: Served) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": CHAT, "max_completion_tokens": 8}

    async def ask() -> tuple[list[str], str | None]:
        async with async_client_of(server) as client, client.chat.completions.stream(**asked) as stream:
            events = [event.type async for event in stream]
            return events, stream._state.current_completion_snapshot.choices[0].message.content

    events, content = asyncio.run(ask())
    assert "content.delta" in events
    assert events[-1] == "content.done"
    with client_of(server) as client, client.chat.completions.stream(**asked) as stream:
        assert [event.type for event in stream] == events
        assert stream.current_completion_snapshot.choices[0].message.content == content


def test_several_at_once_have_their_own_answers(server: Served) -> None:
    async def ask() -> list[str | None]:
        async with async_client_of(server) as client:
            asked = [
                client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=6, temperature=1.0, seed=seed)
                for seed in (1, 2, 1, 2)
            ]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*asked)]

    first, second, again, too = asyncio.run(ask())
    assert (first, second) == (again, too)
    assert first != second
