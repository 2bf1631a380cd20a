"""What only some engines can do: log-probabilities, a prediction, a drafter for one request, texts apart by key."""

import json
import math
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from forerun import Engine, SamplingParams
from forerun.core.steps import GenerationStats
from tests.server.serving import ENGINE, Served, events_of, served

PROMPT = "def read_lines(path):"
ASKED = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.7, "seed": 2}
KEYS = ("the-first-key-of-two", "the-second-key-of-two")


@pytest.fixture(scope="module")
def own() -> Iterator[Engine]:
    """The engine itself, to compare with."""
    with Engine(ENGINE) as engine:
        yield engine


def test_a_completion_says_how_likely_its_tokens_were(client: httpx.Client, own: Engine) -> None:
    choice = client.post("/v1/completions", json={**ASKED, "logprobs": 3}).json()["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert [len(top) <= 4 for top in found["top_logprobs"]] == [True] * 24
    assert found["text_offset"][0] == 0
    assert all(later - earlier >= 0 for earlier, later in pairwise(found["text_offset"]))
    params = SamplingParams(max_new_tokens=24, temperature=0.7, seed=2, logprobs=3)
    expected = [item.logprob for step in own.stream(PROMPT, params) for item in step.logprobs]
    assert found["token_logprobs"] == pytest.approx(expected, abs=1e-4)


def test_a_chat_says_it_in_its_own_form_and_the_same_in_a_stream(client: httpx.Client) -> None:
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "def f("}], "max_tokens": 12, "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    choice = client.post("/v1/chat/completions", json=asked).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 2
        assert math.exp(entry["logprob"]) <= 1.0
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"]  # greedy
    *events, _ = events_of(client.post("/v1/chat/completions", json={**asked, "stream": True}).text)
    streamed = [json.loads(event)["choices"][0]["logprobs"] for event in events]
    assert [entry for item in streamed if item for entry in item["content"]] == content


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_are_the_text_also_where_it_ends_within_a_character(client: httpx.Client, stream: bool) -> None:
    first = client.post("/tokenize", json={"prompt": "\U0001f600"}).json()["tokens"][0]
    asked = {
        "prompt": PROMPT, "max_tokens": 3, "logit_bias": {str(first): 100.0}, "logprobs": 0, "stream": stream,
        "forerun": {"details": True},
    }  # fmt: skip
    answer = client.post("/v1/completions", json=asked)
    bodies = [json.loads(event) for event in events_of(answer.text)[:-1]] if stream else [answer.json()]
    choices = [body["choices"][0] for body in bodies]
    assert "".join(choice["text"] for choice in choices) == "\ufffd" * 2, "the third one might still become a character"
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    assert "".join(tokens) == "\ufffd" * 2
    pieces = [token["text"] for body in bodies for token in body.get("forerun", {}).get("tokens", ())]
    assert "".join(pieces) == ("\ufffd" * 2 if stream else "")


def test_without_alternatives_there_is_the_token_alone(client: httpx.Client) -> None:
    asked = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 4, "logprobs": True}
    content = client.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 4


def test_who_asks_for_alternatives_alone_has_logarithms_too(client: httpx.Client) -> None:
    asked = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 2, "top_logprobs": 2}
    content = client.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2]
    answer = client.post("/v1/chat/completions", json={**asked, "logprobs": False}).json()
    assert answer["choices"][0]["logprobs"] is None


def test_a_completion_s_alternatives_have_the_token_itself(client: httpx.Client) -> None:
    asked = {**ASKED, "temperature": 1.5, "logprobs": 1}
    found = client.post("/v1/completions", json=asked).json()["choices"][0]["logprobs"]
    pairs = list(zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True))
    assert all(token in top and logprob <= max(top.values()) for token, logprob, top in pairs)
    assert max(len(top) for _, _, top in pairs) == 2


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
def test_an_echoed_prompt_has_its_logarithms_too(client: httpx.Client, own: Engine, max_tokens: int) -> None:
    """The form by which lm-evaluation-harness judges models: the first token has none, the answer's follow."""
    prompt = "def größe(x): return 1"
    ids = own.encode(prompt)
    asked = {**ASKED, "max_tokens": max_tokens, "echo": True, "logprobs": 2}
    choices = client.post("/v1/completions", json={**asked, "prompt": [prompt, prompt]}).json()["choices"]
    choices += client.post("/v1/completions", json={**asked, "prompt": ids, "n": 2}).json()["choices"]
    params = SamplingParams(max_new_tokens=1, prompt_logprobs=2)
    expected = own.generate(prompt, params).prompt_logprobs
    for choice in choices:
        found = choice["logprobs"]
        assert "".join(found["tokens"]) == choice["text"]
        assert len(found["tokens"]) == len(ids) + max_tokens
        assert found["token_logprobs"][: len(ids)] == [None, *(item.logprob for item in expected)]
        assert found["top_logprobs"][0] is None
        assert all(2 <= len(top) <= 3 for top in found["top_logprobs"][1:])
        assert all(
            logprob in top.values()
            for logprob, top in zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True)
        )
        lengths = [len(token) for token in found["tokens"]]
        assert found["text_offset"] == [sum(lengths[:place]) for place in range(len(lengths))]
    assert choices[0]["text"].startswith(prompt)


def test_logarithms_of_a_prompt_have_vllm_s_form(client: httpx.Client, own: Engine) -> None:
    ids = own.encode(PROMPT)
    expected = own.generate(PROMPT, SamplingParams(max_new_tokens=1, prompt_logprobs=2)).prompt_logprobs
    asked = {**ASKED, "prompt": [ids, ids], "n": 2, "max_tokens": 1, "prompt_logprobs": 2}
    for choice in client.post("/v1/completions", json=asked).json()["choices"]:
        first, *others = choice["prompt_logprobs"]
        assert first is None
        for item, found in zip(expected, others, strict=True):
            values = {str(token): value for token, value in ((item.token_id, item.logprob), *item.top)}
            assert {token: one["logprob"] for token, one in found.items()} == values
            assert [found[str(token)]["rank"] for token, _ in item.top] == [1, 2]
            assert found[str(item.token_id)]["rank"] == item.num_likelier + 1
            assert all(one["decoded_token"] == own.tokenizer.decode([int(token)]) for token, one in found.items())
        assert choice["logprobs"] is None
    chat = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 1, "prompt_logprobs": 0}
    answer = client.post("/v1/chat/completions", json=chat).json()
    assert [None if found is None else len(found) for found in answer["prompt_logprobs"]] == [
        None, *[1] * (answer["usage"]["prompt_tokens"] - 1),
    ]  # fmt: skip
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1, "stream": True}, "stream"),
        ({"echo": True, "logprobs": 1, "stream": True}, "stream"),
        ({"echo": True, "logprobs": 1, "suffix": "x"}, "suffix"),
        ({"prompt_logprobs": 20, "prompt": [[5] * 2000] * 16}, "prompt"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ],
)
def test_logarithms_of_a_prompt_are_refused(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = client.post("/v1/completions", json={**ASKED, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_request_may_be_decoded_plainly(client: httpx.Client) -> None:
    drafted = client.post("/v1/completions", json=ASKED).json()
    plain = client.post("/v1/completions", json={**ASKED, "forerun": {"drafter": "none"}}).json()
    assert plain["choices"][0]["text"] == drafted["choices"][0]["text"]
    assert plain["usage"]["forerun"]["drafter"] == "none"
    assert plain["usage"]["forerun"]["drafted"] == plain["timings"]["draft_n"] == 0
    answer = client.post("/v1/completions", json={**ASKED, "forerun": {"drafter": "wizard"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "forerun.drafter"
    assert client.get("/v1/forerun").json()["drafters"] == ["draft_model", "none"]


def test_the_page_is_told_whether_the_newest_measured_answer_gained(
    client: httpx.Client, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> tuple[bool | None, str]:
        about = client.get("/v1/forerun").json()
        return about["gained"], about["advice"]

    verdicts = iter((None, True, False, None))
    monkeypatch.setattr(GenerationStats, "gained", property(lambda stats: next(verdicts)))
    monkeypatch.setattr(server.service, "gained", None)
    plainly = {"forerun": {"drafter": "none"}}
    seen = []
    for options in ({}, {}, plainly, {}, {}):  # a plain answer is no measurement, so it takes no verdict
        client.post("/v1/completions", json={**ASKED, **options})
        seen.append(told())
    assert [gained for gained, _ in seen] == [None, True, True, False, False]
    assert ["qwen2.5-coder:1.5b" in advice for _, advice in seen] == [False, False, False, True, True]


def test_a_prediction_that_comes_true_is_counted_and_changes_nothing(client: httpx.Client) -> None:
    asked = {"messages": [{"role": "user", "content": "def f("}], "max_tokens": 48, "ignore_eos": True}
    whole = client.post("/v1/chat/completions", json=asked).json()
    text = whole["choices"][0]["message"]["content"]
    for content in (text, [{"type": "text", "text": text}]):
        predicted = {**asked, "prediction": {"type": "content", "content": content}}
        answer = client.post("/v1/chat/completions", json=predicted).json()
        assert answer["choices"][0]["message"]["content"] == text
        details = answer["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] > 24
    other = {**asked, "prediction": {"type": "content", "content": "nothing of the kind"}}
    assert client.post("/v1/chat/completions", json=other).json()["choices"][0]["message"]["content"] == text


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served(api_keys=KEYS) as running:
        yield running


def test_keys_do_not_share_what_was_computed(shared: Served) -> None:
    def cached(key: str, prompt: str) -> int:
        with shared.client(headers={"authorization": f"Bearer {key}"}) as client:
            answer = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).json()
        found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    prompt = "class Reader:\n    def __init__(self, path):\n        self.path = path\n"
    assert cached(KEYS[0], prompt) == 0
    assert cached(KEYS[1], prompt) == 0
    assert cached(KEYS[1], prompt) > 0


def test_the_long_texts_of_one_key_keep_no_other_one_waiting() -> None:
    first, second = ({"authorization": f"Bearer {key}"} for key in KEYS)
    with served(api_keys=KEYS) as server, server.client() as client:
        answers: list[int] = []

        def hold_up() -> None:
            asked = {"prompt": "hello world " * 80_000}
            answers.append(client.post("/v1/completions", json=asked, headers=first).status_code)

        threads = [threading.Thread(target=hold_up) for _ in range(3)]
        for thread in threads:
            thread.start()
        while not any(turn.locked() for turn in list(server.service.prompts._turns.values())):
            assert any(thread.is_alive() for thread in threads)
        assert client.post("/v1/completions", json=ASKED, headers=second).status_code == 200
        assert len(answers) < len(threads), "the other one's texts were still to be read"
        for thread in threads:
            thread.join()
        assert set(answers) <= {400, 503}
