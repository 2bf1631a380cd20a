"""The ways in which a program asks through the openai client: each gives the same text."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import httpx
import openai

from tests.server.serving import Served

Client: TypeAlias = Literal["sync", "async"]
Api: TypeAlias = Literal["chat", "completions"]
MODEL = "builtin"
PROMPT = "def read_lines(path):"
CHAT: list[Any] = [{"role": "user", "content": PROMPT}]


def options(server: Served, **more: Any) -> dict[str, Any]:
    """What both clients are made with; answers that differ from the client's types are errors."""
    own = {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
    return {**own, "_strict_response_validation": True, **more}


@contextmanager
def client_of(server: Served, **more: Any) -> Iterator[openai.OpenAI]:
    """The synchronous client. It heeds no proxy of the machine, and reads no certificates, which takes a while."""
    http = httpx.Client(trust_env=False, verify=False)
    with openai.OpenAI(http_client=http, **options(server, **more)) as client:
        yield client


def async_client_of(server: Served, **more: Any) -> openai.AsyncOpenAI:
    """The asynchronous one, a context manager."""
    return openai.AsyncOpenAI(http_client=httpx.AsyncClient(trust_env=False, verify=False), **options(server, **more))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a request: the text of each choice and why it ended, in order; logarithms where asked for."""

    texts: list[str]
    finishes: list[str | None]
    num_prompt: int
    num_new: int
    logprobs: list[float]
    top: list[dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to ask.

    Args:
        streams: as a stream, with its usage at the end.
    """

    client: Client
    api: Api
    streams: bool

    def __str__(self) -> str:
        return f"{self.client}-{self.api}-{'stream' if self.streams else 'whole'}"

    def ask(self, server: Served, **fields: Any) -> Answer:
        """The answer to the prompt of all tests."""
        fields = {"model": MODEL, **({"messages": CHAT} if self.api == "chat" else {"prompt": PROMPT}), **fields}
        if self.streams:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        given = asyncio.run(self._ask_async(server, fields)) if self.client == "async" else self._ask(server, fields)
        return from_chunks(given) if self.streams else from_whole(given)

    def _ask(self, server: Served, fields: dict[str, Any]) -> Any:
        with client_of(server, _strict_response_validation=self._is_typed) as client:
            given = (client.chat.completions if self.api == "chat" else client.completions).create(**fields)
            return list(given) if self.streams else given

    async def _ask_async(self, server: Served, fields: dict[str, Any]) -> Any:
        async with async_client_of(server, _strict_response_validation=self._is_typed) as client:
            given = await (client.chat.completions if self.api == "chat" else client.completions).create(**fields)
            return [chunk async for chunk in given] if self.streams else given

    @property
    def _is_typed(self) -> bool:
        """The client's type for a streamed completion has no finish_reason of null, which OpenAI itself sends."""
        return not (self.streams and self.api == "completions")


WAYS = [
    Way(client=client, api=api, streams=streams)
    for client in ("sync", "async") for api in ("chat", "completions") for streams in (False, True)
]  # fmt: skip


def from_whole(given: Any) -> Answer:
    """Of one object."""
    return collected([given], given.usage)


def from_chunks(chunks: list[Any]) -> Answer:
    """Of a stream, whose last chunk alone has the usage, and no choices."""
    *pieces, last = chunks
    assert last.choices == []
    assert all(piece.usage is None and len(piece.choices) == 1 for piece in pieces)
    assert len({(piece.id, piece.created, piece.model, piece.system_fingerprint) for piece in chunks}) == 1
    return collected(pieces, last.usage)


def collected(pieces: Iterable[Any], usage: Any) -> Answer:
    """The choices of all pieces, put together by their numbers."""
    texts: dict[int, str] = {}
    finishes: dict[int, str | None] = {}
    logprobs: list[float] = []
    top: list[dict[str, float]] = []
    for choice in (choice for piece in pieces for choice in piece.choices):
        said = getattr(choice, "message", None) or getattr(choice, "delta", None)
        texts[choice.index] = texts.get(choice.index, "") + ((said.content if said else choice.text) or "")
        assert finishes.get(choice.index) is None, "nothing follows the end of a text"
        finishes[choice.index] = choice.finish_reason
        if choice.logprobs is not None and said is not None:
            logprobs += [entry.logprob for entry in choice.logprobs.content]
            top += [{one.token: one.logprob for one in entry.top_logprobs} for entry in choice.logprobs.content]
        elif choice.logprobs is not None:
            logprobs += choice.logprobs.token_logprobs
            top += choice.logprobs.top_logprobs
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return Answer(
        texts=[texts[index] for index in sorted(texts)], finishes=[finishes[index] for index in sorted(finishes)],
        num_prompt=usage.prompt_tokens, num_new=usage.completion_tokens, logprobs=logprobs, top=top,
    )  # fmt: skip
