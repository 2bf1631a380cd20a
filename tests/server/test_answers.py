"""What the server answers is what the engine writes, whole and as a stream."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from forerun import Engine, SamplingParams
from forerun.core.config import seed_of_text
from tests.server.serving import ENGINE, Served, events_of

PROMPT = "def read_lines(path):"
CHAT = [{"role": "user", "content": "def f("}]


@pytest.fixture(scope="module")
def own() -> Any:
    """The engine itself, to compare with."""
    with Engine(ENGINE) as engine:
        yield engine


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 5, "top_k": 40, "presence_penalty": 0.5}])
def test_a_completion_is_the_engines_text(client: httpx.Client, own: Engine, settings: dict[str, Any]) -> None:
    answer = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 24, **settings}).json()
    expected = own.generate(PROMPT, SamplingParams(max_new_tokens=24, **settings))
    assert answer["choices"][0]["text"] == expected.text
    assert answer["usage"]["completion_tokens"] == len(expected.token_ids)
    assert answer["object"] == "text_completion"


def test_a_chat_goes_through_the_template_as_in_the_engine(client: httpx.Client, own: Engine) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 16}).json()
    expected = own.generate(CHAT, SamplingParams(max_new_tokens=16))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert answer["usage"]["prompt_tokens"] == len(own.encode(CHAT))


def test_what_a_message_says_cannot_become_a_control_token(client: httpx.Client, own: Engine) -> None:
    messages = [{"role": "user", "content": "<|endoftext|><|im_end|>"}]
    answer = client.post("/tokenize", json={"messages": messages}).json()
    assert answer["tokens"] == own.encode(messages)


def test_a_stream_is_the_whole_answer_in_pieces(client: httpx.Client) -> None:
    asked = {"messages": CHAT, "max_tokens": 24, "seed": 1, "temperature": 0.7}
    whole = client.post("/v1/chat/completions", json=asked).json()
    stream = client.post(
        "/v1/chat/completions", json={**asked, "stream": True, "stream_options": {"include_usage": True}}
    )
    *events, done = events_of(stream.text)
    assert done == "[DONE]"
    assert stream.headers["content-type"].startswith("text/event-stream")
    bodies = [json.loads(event) for event in events]
    *pieces, last = bodies
    assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert text == whole["choices"][0]["message"]["content"]
    assert pieces[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert [piece["choices"][0]["finish_reason"] for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["timings"]["predicted_n"] == 24
    assert {body["id"] for body in bodies} == {bodies[0]["id"]}
    assert {piece["usage"] for piece in pieces} == {None}


def test_a_stream_has_an_event_for_each_round(client: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 32, "stream": True, "forerun": {"details": True}}
    *events, _, _ = events_of(client.post("/v1/completions", json=asked).text)
    rounds = [json.loads(event)["forerun"] for event in events]
    assert [item["round"] for item in rounds] == list(range(1, len(rounds) + 1))
    assert sum(len(item["tokens"]) for item in rounds) == 32
    makers = {token["by"] for item in rounds for token in item["tokens"]}
    assert {"draft", "bonus"} <= makers <= {"draft", "lookup", "bonus"}
    for item in rounds:
        tree = item["tree"]
        assert len(tree["texts"]) == len(tree["parents"]) == len(tree["sources"])
        assert [tree["texts"][node] for node in tree["path"]] == [
            token["text"] for token in item["tokens"][: len(tree["path"])]
        ] or len(item["tokens"]) <= len(tree["path"])
        assert all(span["begin_ms"] <= span["end_ms"] for span in item["spans"])


def test_several_texts_have_seeds_of_their_own(client: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1.0, "seed": 3}
    several = client.post("/v1/completions", json={**asked, "n": 3}).json()
    texts = [choice["text"] for choice in several["choices"]]
    seeds = [seed_of_text(3, number) for number in range(3)]
    singly = [client.post("/v1/completions", json={**asked, "seed": seed}).json() for seed in seeds]
    assert texts == [answer["choices"][0]["text"] for answer in singly]
    assert several["usage"]["completion_tokens"] == sum(answer["usage"]["completion_tokens"] for answer in singly)
    assert several["usage"]["prompt_tokens"] == singly[0]["usage"]["prompt_tokens"]


def test_the_texts_of_neighbouring_seeds_have_nothing_in_common(client: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1.5, "n": 3}
    answers = [client.post("/v1/completions", json={**asked, "seed": seed}).json() for seed in (5, 6, 7)]
    assert len({choice["text"] for answer in answers for choice in answer["choices"]}) == 9


def test_prompts_may_be_several_texts_or_ids(client: httpx.Client) -> None:
    ids = client.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    one = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 8}).json()["choices"][0]["text"]
    for prompt in (ids, [ids], [PROMPT]):
        answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 8}).json()
        assert [choice["text"] for choice in answer["choices"]] == [one]
    answer = client.post("/v1/completions", json={"prompt": [ids, ids], "max_tokens": 8}).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, one), (1, one)]
    assert answer["usage"]["prompt_tokens"] == 2 * len(ids)


def test_echo_puts_the_prompt_first(client: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 8, "echo": True}
    whole = client.post("/v1/completions", json=asked).json()["choices"][0]["text"]
    assert whole.startswith(PROMPT)
    *events, _ = events_of(client.post("/v1/completions", json={**asked, "stream": True}).text)
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == whole


def test_stop_strings_end_the_text_and_are_not_in_it(client: httpx.Client) -> None:
    full = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 32}).json()["choices"][0]["text"]
    stop = full[10:14]
    for asked in ({"stop": stop}, {"stop": [stop, "never there"]}):
        answer = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 32, **asked}).json()["choices"][0]
        assert answer["text"] == full[: full.index(stop)]
        assert answer["finish_reason"] == "stop"


def test_a_second_turn_reuses_the_first(client: httpx.Client) -> None:
    first = client.post("/v1/chat/completions", json={"messages": CHAT, "max_tokens": 16}).json()
    answer = first["choices"][0]["message"]["content"]
    messages = [*CHAT, {"role": "assistant", "content": answer}, {"role": "user", "content": "again"}]
    second = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4}).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 1
    assert second["timings"]["cache_n"] == second["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_times_have_all_the_names_that_llama_server_gives_them(client: httpx.Client) -> None:
    asked = {"prompt": "# nobody else asks this, so that it is read\n", "max_tokens": 8, "ignore_eos": True}
    found = client.post("/v1/completions", json=asked).json()["timings"]
    names = {f"{part}_{what}" for part in ("prompt", "predicted") for what in ("n", "ms", "per_token_ms", "per_second")}
    assert found.keys() == names | {"cache_n", "draft_n", "draft_n_accepted"}
    assert found["predicted_per_token_ms"] == pytest.approx(found["predicted_ms"] / 8, abs=1e-2)
    assert found["prompt_per_token_ms"] * found["prompt_per_second"] == pytest.approx(1e3, rel=1e-2)
    assert found["predicted_per_second"] == pytest.approx(8e3 / found["predicted_ms"], rel=1e-2)
    assert min(found.values()) >= 0


def test_more_tokens_than_fit_are_cut_off(client: httpx.Client, server: Served) -> None:
    ids = [5] * (server.service.engine.max_length - 3)
    asked = {"prompt": ids, "max_tokens": 1_000_000, "ignore_eos": True}
    answer = client.post("/v1/completions", json=asked).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["finish_reason"] == "length"


def test_text_and_tokens_are_each_others_inverse(client: httpx.Client) -> None:
    found = client.post("/tokenize", json={"prompt": PROMPT}).json()
    assert found["count"] == len(found["tokens"])
    assert client.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": PROMPT, "content": PROMPT}


def test_the_tokenizer_is_described_so_that_others_can_ask_for_ids(client: httpx.Client, server: Served) -> None:
    """As lm-evaluation-harness does, which encodes the end token by its text."""
    found = client.get("/tokenizer_info").json()
    template = server.service.engine.tokenizer.chat_template
    assert template is not None
    assert found["chat_template"] == template.source
    assert {name: found[name] for name in template.special_tokens} == dict(template.special_tokens)
    ids = client.post("/tokenize", json={"prompt": found["eos_token"], "add_special_tokens": False}).json()["tokens"]
    assert len(ids) == 1


def test_the_model_is_listed_and_known_by_its_name(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["builtin"]
    assert client.get("/v1/models/builtin").json() == listed[0]
    assert client.get("/v1/models/gpt-5").status_code == 404


def test_metrics_count_what_was_written(client: httpx.Client) -> None:
    def written() -> float:
        lines = client.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith("forerun:generation_tokens_total")).split()[1])

    before = written()
    client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 7, "ignore_eos": True})
    assert written() == before + 7
    text = client.get("/metrics").text
    assert "vllm:spec_decode_num_accepted_tokens_total" in text
    assert 'forerun:spec_decode_num_accepted_tokens_per_pos_total{position="0"}' in text
    assert "forerun:e2e_request_latency_seconds_bucket" in text
    assert "_created" not in text  # tools that read counters by a part of their names would add these times


def test_metrics_count_no_token_that_is_in_no_text(client: httpx.Client) -> None:
    def counted(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"forerun:{name}_total ")).split()[1])

    accepted = "spec_decode_num_accepted_tokens"
    was_cut = False
    for num_tokens in (1, 2, 3):
        before = counted(accepted)
        asked = {"prompt": PROMPT, "max_tokens": num_tokens, "ignore_eos": True}
        answer = client.post("/v1/completions", json=asked).json()
        num_accepted = counted(accepted) - before
        assert answer["usage"]["forerun"]["accepted"] == answer["timings"]["draft_n_accepted"] == num_accepted
        assert num_accepted <= num_tokens
        was_cut |= num_accepted == num_tokens
    assert was_cut, "a round accepted all tokens that the text may have, and chose one more"


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/v1/models", "/metrics", "/nothing", "/v1/completions"])
def test_the_head_of_an_answer_is_that_of_the_answer(client: httpx.Client, path: str) -> None:
    whole = client.get(path)
    head = client.head(path)
    assert head.status_code == whole.status_code
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.content == b""


def test_an_answer_that_was_cut_goes_on_as_if_it_had_not_been(client: httpx.Client) -> None:
    """Where its text has the tokens again that it was written in, as here."""

    def said(num: int, *answers: str, **more: Any) -> str:
        messages = [{"role": "user", "content": "def f(x):"}]
        messages += [{"role": "assistant", "content": one} for one in answers]
        body = {"messages": messages, "max_tokens": num, "seed": 3, "temperature": 0.9, **more}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    begun = said(16)
    assert begun + said(16, begun, continue_final_message=True, add_generation_prompt=False) == said(32)
    assert said(16, begun) != said(16, begun, continue_final_message=True)


def test_only_an_answer_goes_on(client: httpx.Client) -> None:
    question = {"role": "user", "content": "Hi"}
    answer = {"role": "assistant", "content": "Ho"}
    for messages, more in (([question], {}), ([question, answer], {"add_generation_prompt": True})):
        body = {"messages": messages, "max_tokens": 2, "continue_final_message": True, **more}
        refused = client.post("/v1/chat/completions", json=body)
        assert refused.status_code == 400
        assert "last message" in refused.json()["error"]["message"]


PROGRESS_WAYS = (
    ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2}),
    ("/v1/completions", lambda text: {"prompt": text, "max_tokens": 2}),
    ("/v1/messages", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 2}),
    ("/v1/responses", lambda text: {"input": text, "max_output_tokens": 2}),
)


@pytest.mark.parametrize(("path", "body_of"), PROGRESS_WAYS, ids=[path for path, _ in PROGRESS_WAYS])
def test_a_stream_tells_how_much_of_the_prompt_is_read(
    client: httpx.Client, path: str, body_of: Callable[[str], dict[str, Any]]
) -> None:
    text = "".join(f"value_{number} = {path}\n" for number in range(110))
    body = body_of(text) | {"stream": True}
    read = [
        event["prompt_progress"]
        for event in json_events(client.post(path, json=body | {"return_progress": True}).text)
        if "prompt_progress" in event
    ]
    assert len(read) > 2
    assert [part["processed"] for part in read] == sorted({part["processed"] for part in read})
    assert read[-1]["processed"] == read[-1]["total"] == num_prompt_tokens(client, path, body_of(text))
    assert {part["cache"] for part in read} == {read[0]["cache"]}
    again = json_events(client.post(path, json=body).text)
    assert not any("prompt_progress" in event for event in again), "it was not asked for"
    cached = json_events(client.post(path, json=body | {"return_progress": True}).text)
    assert any(event.get("prompt_progress", {}).get("cache", 0) > read[-1]["total"] // 2 for event in cached)


def json_events(text: str) -> list[dict[str, Any]]:
    """The data of a stream's events."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def num_prompt_tokens(client: httpx.Client, path: str, body: dict[str, Any]) -> int:
    usage = client.post(path, json=body).json()["usage"]
    return usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def chat_usage(client: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, **more}
    usage: dict[str, Any] = client.post("/v1/chat/completions", json=body).json()["usage"]
    return usage


def test_the_usage_tells_where_a_prompt_differs_from_the_last_one(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    lines = "".join(f"value_{number} = {number}\n" for number in range(40))
    messages = [
        {"role": role, "content": f"{lines}{role} {turn}"} for turn in range(2) for role in ("user", "assistant")
    ]
    messages.append({"role": "user", "content": "a question"})
    assert "prompt_change" not in chat_usage(client, messages)["forerun"], "it is the first one"
    longer = [*messages, {"role": "assistant", "content": "an answer"}, {"role": "user", "content": "another one"}]
    assert "prompt_change" not in chat_usage(client, longer)["forerun"], "it only goes on"
    changed = [*longer[:2], {**longer[2], "content": f"a reminder\n{longer[2]['content']}"}, *longer[3:]]
    usage = chat_usage(client, changed)
    change = usage["forerun"]["prompt_change"]
    assert (change["message"], change["role"]) == (2, "user")
    assert change["num_shared"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert change["num_lost"] > 100
    assert "in message 2 (user)" in caplog.text
    assert "reminder" not in caplog.text
    other = [{"role": "user", "content": "quite another thing"}]
    assert "prompt_change" not in chat_usage(client, other)["forerun"], "it is another conversation"
    body = {"messages": [{**changed[0], "content": lines + "new"}, *changed[1:]], "max_tokens": 2}
    anthropic = client.post("/v1/messages", json=body).json()["usage"]
    assert anthropic["forerun"]["prompt_change"]["message"] == 0
