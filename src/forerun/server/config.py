"""Configuration of a server: its address, who may call it, and all limits."""

from dataclasses import dataclass
from typing import Final

from forerun.core.errors import ConfigError, require
from forerun.core.field_types import read_fields, setting

MAX_PORT: Final = 65535
MIN_KEY_CHARACTERS: Final = 16
PROMPT_BYTES: Final = 4 * 10**9  # 140,000 tokens of a Qwen2.5 of 1.5B parameters, 30,000 of an 8B model
COUNTS: Final = (
    "max_connections",
    "max_connections_per_client",
    "max_queued",
    "max_queued_per_key",
    "max_queued_tokens",
)


class AddressError(ConfigError):
    """A server cannot listen at its address, which is in use, not allowed, or not this machine's."""


class KeyFileError(ConfigError):
    """A key file is missing, readable by other users, or contains no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """One server.

    Args:
        host: a name or address of this machine; an address other than loopback needs a key.
        port: 0 picks a free port.
        model_name: the model's name for clients; None: the last part of its own name.
        requires_model_name: a request that names another model is an error; otherwise a single model answers it.
        api_keys: each of them gives access to all routes; empty: no key is needed.
        insecure_no_auth: allow addresses other than loopback without a key.
        allowed_hosts: names accepted in the Host header in addition to those of loopback.
        allowed_origins: other sites, such as https://chat.example, whose pages may call the server.
        max_thought_tokens: most tokens of a model's thoughts in an answer, for requests that set no limit; None: no
            limit.
        saved_prompt_bytes: see `EngineConfig`, for each model.
        is_demo: add a route that kills the drafter's process.
        keep_alive_s: a model that no request used for so long is unloaded, and loaded again by the next request; None:
            it stays loaded.
        max_loaded: how many of several models may be loaded at once; None: as many as fit.
        max_body_bytes, max_header_bytes: size of a request.
        max_prompt_body_bytes: size of the body of a request for a text, in which agents send whole conversations.
        max_json_depth: nesting of a request's JSON.
        max_connections, max_connections_per_client: open connections, in total and per client address; a reverse proxy
            counts as one client.
        max_choices: texts per request: n times the number of prompts.
        max_queued, max_queued_per_key: waiting requests, in total and per key.
        max_queued_tokens: prompt tokens plus maximum new tokens of all waiting requests; one key may use half of it.
        max_request_s: time from the request to its last token.
        max_unread_events: how many events a slow reader may fall behind before its request is cancelled.
        max_template_s, max_template_bytes: time and memory for the chat template.
        max_stalled_s: if one pass of the target takes longer than this, the server reports that it is not ready.
        header_s, body_s: time to send a request's headers and body.
        idle_s: how long a connection may stay open between requests.
        unread_s: how long a client may read nothing while an answer is ready to be sent.
        ping_s: time between the comments that keep a waiting stream open.
        drain_s: time for running requests to finish after SIGTERM.
    """

    host: str = setting("127.0.0.1", "--host", help="Address to listen on; any but loopback needs a key.")
    port: int = setting(8000, "--port", help="Port to listen on; 0 takes a free one.")
    model_name: str | None = setting(
        None, "--served-model-name", help="The model's name for clients [the last part of its own name]."
    )
    requires_model_name: bool = setting(
        False, "--require-model-name", help="Refuse requests that name another model; otherwise a single model answers."
    )
    api_keys: tuple[str, ...] = ()
    insecure_no_auth: bool = setting(False, "--insecure-no-auth", help="Let other machines connect without a key.")
    allowed_hosts: tuple[str, ...] = setting(
        (), "--allowed-host", help="Another name that the Host header may have; repeatable."
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "--allowed-origin", help="Another site whose pages may call the server; repeatable."
    )
    max_thought_tokens: int | None = setting(
        None,
        "--reasoning-budget",
        help="Tokens of thoughts in an answer at most, where a request sets no limit; 0: none; -1: no limit.",
    )
    saved_prompt_bytes: int = setting(
        PROMPT_BYTES,
        "--saved-prompt-bytes",
        help="Disk space for long prompts that are not read again after a restart, such as 2GiB; 0: none.",
    )
    is_demo: bool = setting(
        False, "--demo", help="Add a route that kills the drafter's process, to show that no text changes."
    )
    keep_alive_s: float | None = None
    max_loaded: int | None = setting(
        None,
        "--max-loaded",
        help="Limit on models loaded at once [as many as fit into 70 % of the memory; 1 on a GPU].",
    )
    max_body_bytes: int = 2 * 2**20
    max_prompt_body_bytes: int = 8 * 2**20
    max_header_bytes: int = 16 * 2**10
    max_json_depth: int = 64
    max_connections: int = setting(512, "--max-connections", help="Limit on open connections.")
    max_connections_per_client: int = setting(
        256, "--max-connections-per-client", help="Limit on open connections of one address (a reverse proxy is one)."
    )
    max_choices: int = 16
    max_queued: int = setting(64, "--max-queued", help="Limit on waiting requests; further ones get status 429.")
    max_queued_per_key: int = setting(32, "--max-queued-per-key", help="Limit on waiting requests of one key.")
    max_queued_tokens: int = setting(
        2**21, "--max-queued-tokens", help="Limit on tokens of waiting requests."
    )  # 64 of 32,768
    max_request_s: float = setting(3600.0, "--request-timeout", help="Seconds from a request to its last token.")
    max_unread_events: int = 1024
    max_template_s: float = 1.0
    max_template_bytes: int = 2**29
    max_stalled_s: float = 60.0
    header_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 30.0
    unread_s: float = 60.0
    ping_s: float = 15.0
    drain_s: float = setting(30.0, "--drain-timeout", help="Seconds for running requests to finish after SIGTERM.")

    def __post_init__(self) -> None:
        read_fields(self)
        require(self.host != "", "host is empty: give one, such as 127.0.0.1 for this machine only")
        require(0 <= self.port <= MAX_PORT, f"port {self.port} must lie in [0, {MAX_PORT}]")
        require(self.model_name != "", "model_name is empty: leave it out, or give a name")
        require(
            self.keep_alive_s is None or 0.0 <= self.keep_alive_s < float("inf"),
            f"keep_alive_s {self.keep_alive_s} must be a number of seconds >= 0, or None",
        )
        require(self.max_loaded is None or self.max_loaded >= 1, f"max_loaded {self.max_loaded} must be >= 1")
        short_keys = sum(len(key) < MIN_KEY_CHARACTERS for key in self.api_keys)
        require(
            short_keys == 0,
            f"{short_keys} of {len(self.api_keys)} API keys are shorter than {MIN_KEY_CHARACTERS} characters, so they "
            "can be guessed: make one with openssl rand -hex 24",
        )
        if self.max_thought_tokens == -1:
            object.__setattr__(self, "max_thought_tokens", None)
        require(
            self.max_thought_tokens is None or self.max_thought_tokens >= 0,
            f"max_thought_tokens {self.max_thought_tokens} must be >= 0, or -1 for no limit",
        )
        for name in COUNTS:
            require(getattr(self, name) >= 1, f"{name} {getattr(self, name)} must be >= 1")
        for name in ("max_request_s", "drain_s"):
            value = getattr(self, name)
            require(0.0 < value < float("inf"), f"{name} {value} must be a finite number of seconds > 0")
