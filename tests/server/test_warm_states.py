"""Conversations with a model whose layers have states: what a later turn reads again, counted over HTTP."""

import json
from typing import Any

import httpx
import pytest

from forerun import EngineConfig, NoDrafter
from tests.marks import rest_slow
from tests.server.serving import served
from tests.text.tiny_tokenizers import TEXT, write_byte_level

pytest.importorskip("transformers")
from tests.golden.random_families import FAMILIES

Message = dict[str, str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Qwen3.5 with a tokenizer whose messages end with a token."""
    folder = tmp_path_factory.mktemp("states")
    FAMILIES["qwen3_5"].save(1, folder, vocab_size=303, max_position_embeddings=16384, num_hidden_layers=2,
                             layer_types=["linear_attention", "full_attention"])  # fmt: skip
    write_byte_level(folder)
    return str(folder)


def engine(model: str) -> EngineConfig:
    return EngineConfig(target=model, drafter=NoDrafter(), dtype="float32", num_threads=1, device="cpu")


def asked(client: httpx.Client, messages: list[Message]) -> tuple[str, int, int]:
    """The answer, the tokens of the prompt, and how many of them were read again."""
    body = {"messages": messages, "max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    answer: dict[str, Any] = client.post("/v1/chat/completions", json=body, timeout=300).json()
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return json.dumps(answer["choices"][0]["message"]), usage["prompt_tokens"], usage["prompt_tokens"] - cached


def words(num_tokens: int, start: int) -> str:
    """Text of about so many tokens."""
    text = f"{start} " + TEXT * 100
    return text[: 2 * num_tokens]


@pytest.mark.parametrize("num_tokens", rest_slow((1500, 8000), 1))
def test_later_turns_read_only_new_tokens_and_few_others(model: str, num_tokens: int) -> None:
    system = {"role": "system", "content": words(num_tokens // 5, 0)}
    conversation = [system]
    for number in range(6):
        role = "assistant" if number % 2 else "user"
        conversation.append({"role": role, "content": words(num_tokens // 8, number)})
    conversation.append({"role": "user", "content": "and now?"})
    with served(engine(model)) as server, server.client() as client:
        _, num_first, read = asked(client, conversation)
        assert read > num_first - 5, "nothing was known"
        _, num_other, read_other = asked(client, [system, {"role": "user", "content": "another chat"}])
        assert num_other < 100 + num_tokens // 4
        assert read_other < 60, "the system prompt was known"
        thoughts_left_out = [
            *conversation,
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "why?"},
        ]
        second, num_second, read_second = asked(client, thoughts_left_out)
        num_new = num_second - num_first
        assert read_second <= num_new + 60, "the last message of the first turn ended at a saved place"
        taken_back = [*conversation[:4], {"role": "user", "content": "something else"}]
        third, num_third, read_third = asked(client, taken_back)
        assert num_third > num_tokens // 3
        assert read_third < 60
    with served(engine(model)) as server, server.client() as client:
        assert asked(client, taken_back)[0] == third
        assert asked(client, thoughts_left_out)[0] == second
