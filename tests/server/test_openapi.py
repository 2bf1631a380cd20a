"""The API's description says what is allowed here, no more and no less."""

import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server.openapi import numerals_below
from tests.server.serving import Served

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@given(st.integers(1, 2**31), st.integers(0, 2**31))
def test_a_pattern_of_numerals_has_those_below_a_number(limit: int, number: int) -> None:
    pattern = re.compile(numerals_below(limit))
    for near in (number, limit - 1, limit, limit + 1, 0):
        assert (pattern.search(str(near)) is not None) == (near < limit)
    assert pattern.search(f"0{number}") is None


def test_bounds_are_the_models_own(client: httpx.Client, server: Served) -> None:
    schema = client.get("/openapi.json").json()
    parts = schema["components"]["schemas"]
    engine = server.service.engine
    tokens = parts["DetokenizeRequest"]["properties"]["tokens"]
    assert tokens["items"] == {"type": "integer", "minimum": 0, "exclusiveMaximum": engine.spec.vocab_size}
    chat = parts["ChatRequest"]["properties"]
    assert "enum" not in chat["model"]  # a single model has every name
    assert chat["seed"]["anyOf"][0]["exclusiveMaximum"] == 2**63  # and no 9.223372036854776e+18
    assert parts["ForerunOptions"]["properties"]["drafter"]["enum"] == ["draft_model", "none", None]
    errors = schema["paths"]["/metrics"]["get"]["responses"]["4XX"]["content"]
    assert list(errors) == ["application/json"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"stop_token_ids": [999_999]}, "stop_token_ids"),
        ({"logit_bias": {"05": 1}}, None),
        ({"logit_bias": {"5": 1, "999999": 1}}, "logit_bias"),
        ({"max_tokens": 2.5}, "max_tokens"),
    ],
)
def test_what_it_does_not_allow_is_refused(client: httpx.Client, changes: dict[str, object], param: str | None) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, **changes})
    assert answer.status_code == 400
    assert param is None or answer.json()["error"]["param"] == param


def test_a_whole_number_may_be_written_with_a_point(client: httpx.Client) -> None:
    whole = {"seed": 3, "n": 2, "top_k": 5}
    pointed = {"seed": 3.0, "n": 2.0, "top_k": 5.0}
    first, second = (
        client.post("/v1/chat/completions", json={**CHAT, "temperature": 0.9, **changes}).json()
        for changes in (whole, pointed)
    )
    assert [choice["message"] for choice in first["choices"]] == [choice["message"] for choice in second["choices"]]
    assert client.post("/detokenize", json={"tokens": [5.0, 6]}).json() == client.post(
        "/detokenize", json={"tokens": [5, 6]}
    ).json()  # fmt: skip
