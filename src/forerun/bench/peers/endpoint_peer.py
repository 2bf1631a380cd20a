"""A server with an OpenAI-compatible completions endpoint that is already running: vLLM or SGLang."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from forerun.bench.peers.event_stream import get_json, post, post_events
from forerun.bench.peers.messages import PeerError, PeerRequest
from forerun.bench.records.answers import Turn
from forerun.core.config import SamplingParams

NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server's extensions to OpenAI's API.

    Args:
        extra: request fields that make the server send ids or counts in every event.
        forget_path: the path that empties the prefix cache; not every server has it.
    """

    extra: Mapping[str, Any]
    forget_path: str


DIALECTS: Final[Mapping[str, Dialect]] = {
    # vLLM has reset_prefix_cache only in its development mode; otherwise start it with --no-enable-prefix-caching.
    "vllm": Dialect(extra={"return_token_ids": True}, forget_path="/reset_prefix_cache"),
    "sglang": Dialect(extra={}, forget_path="/flush_cache"),
}


@dataclass(slots=True)
class Arrivals:
    """The part of an answer that has arrived.

    Ids are kept if the server sends them. Tokens are counted by their ids, else by the server's running count; if the
    server sends neither, the columns stay empty.
    """

    began_s: float = field(default_factory=perf_counter)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: int = 0
    emitted: list[int] = field(default_factory=list)
    emitted_at_s: list[float] = field(default_factory=list)
    last_s: float = 0.0

    def add(self, event: Mapping[str, Any]) -> None:
        at_s = perf_counter() - self.began_s
        for choice in event.get("choices") or ():
            self.texts.append(choice.get("text") or "")
            self.token_ids += choice.get("token_ids") or ()
            self.last_s = at_s
        count = len(self.token_ids) or int((event.get("usage") or {}).get("completion_tokens") or 0)
        if count > self.num_tokens:
            self.emitted.append(count - self.num_tokens)
            self.emitted_at_s.append(at_s)
            self.num_tokens = count

    def turn(self, num_prompt_tokens: int) -> Turn:
        # A single count at the end gives the number of tokens but not their times.
        is_timed = len(self.emitted) > 1 or self.num_tokens == 1
        return Turn(
            text="".join(self.texts),
            num_new_tokens=self.num_tokens,
            wall_s=self.last_s,
            token_ids=tuple(self.token_ids),
            num_prompt_tokens=num_prompt_tokens,
            emitted=tuple(self.emitted) if is_timed else (),
            emitted_at_s=tuple(self.emitted_at_s) if is_timed else (),
        )


class EndpointPeer:
    """A contestant behind a URL. Its times include the network."""

    def __init__(self, name: str, url: str, *, max_length: int) -> None:
        self.name, self._max_length = name, max_length
        self._url = url.rstrip("/").removesuffix("/v1")
        self._dialect = DIALECTS[name]
        self.model = self._find_model()

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        """The server's answer: text, and ids if it sends them.

        Raises:
            PeerError: the server refused, or cannot be reached.
        """
        body = self._body(PeerRequest.of(prompt_ids, params, max_length=self._max_length))
        arrivals = Arrivals()
        for event in post_events(f"{self._url}/v1/completions", body):
            if "error" in event:
                raise PeerError(f"{self.name}: {event['error']}")
            arrivals.add(event)
        if not arrivals.num_tokens:
            raise PeerError(f"{self.name} told neither tokens nor their number: does it know stream_options?")
        return arrivals.turn(len(prompt_ids))

    def forget(self) -> None:
        """Empty the prefix cache if the server can do that."""
        status = post(self._url + self._dialect.forget_path)
        if status >= 400 and status != NOT_FOUND:
            raise PeerError(f"{self.name} answered {status} when asked to empty its cache: is it still at work?")

    def close(self) -> None:
        """Do nothing, because we did not start the server."""

    def _find_model(self) -> str:
        models = get_json(f"{self._url}/v1/models").get("data") or []
        if not models:
            raise PeerError(f"{self._url} serves no model: start it with one")
        return str(models[0]["id"])

    def _body(self, request: PeerRequest) -> dict[str, Any]:
        filters = {"top_k": request.top_k} if request.top_k else {}
        return {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "min_p": request.min_p,
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **filters,
            **self._dialect.extra,
        }
