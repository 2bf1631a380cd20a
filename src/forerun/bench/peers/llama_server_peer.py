"""llama.cpp's own server, started on a free port of this host."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from socket import AF_INET, SOCK_STREAM, socket
from time import monotonic, sleep
from typing import Any, Final

from forerun.bench.peers.child import Log, serve
from forerun.bench.peers.event_stream import get_json, post_events
from forerun.bench.peers.gguf_cache import draft_file, target_file
from forerun.bench.peers.messages import FILTERS, Answer, PeerError, PeerPlan, PeerRequest
from forerun.checkpoints.open import open_source

HOST: Final = "127.0.0.1"
START_S: Final = 300.0
LOOK_S: Final = 0.05
CACHE_TYPES: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
SPECULATION: Final[Mapping[str, Mapping[str, str]]] = {  # unless a setting overrides it
    "plain": {}, "draft": {"spec_type": "draft-simple"}, "lookup": {"spec_type": "ngram-simple"},
}  # fmt: skip


class LlamaServerWriter:
    """A llama-server with one slot, called over HTTP. It streams one token at a time, even within a round."""

    def __init__(self, plan: PeerPlan) -> None:
        assert plan.llama_server is not None, "the catalogue asks for a binary"
        self._plan = plan
        self._eos_ids = frozenset(open_source(plan.target).stop_ids())
        self._url = f"http://{HOST}:{free_port()}"
        self._keeps_prompt = True
        command = [plan.llama_server, *server_flags(plan, port=self._url.rpartition(":")[2])]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        self._wait_until_up()

    def write(self, request: PeerRequest) -> Answer:
        """Generate an answer. Converted files name no end-of-text token, so we close the connection to stop it."""
        stop_ids = frozenset() if request.ignore_eos else self._eos_ids
        log = Log()
        events = post_events(f"{self._url}/completion", self._body(request))
        for event in events:
            if "error" in event:
                raise PeerError(f"llama-server: {event['error']}")
            token_ids = [int(token_id) for token_id in event.get("tokens") or ()]
            if token_ids:
                log.add(token_ids)
            if not stop_ids.isdisjoint(token_ids):
                break
        events.close()
        self._keeps_prompt = True
        if not log.token_ids:
            raise PeerError("llama-server sent no token ids: a version of 2025 or later is needed")
        return log.answer()

    def forget(self) -> None:
        """Make the server compute the whole next prompt."""
        self._keeps_prompt = False

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()

    def _wait_until_up(self) -> None:
        give_up, name = monotonic() + START_S, self._plan.llama_server
        while not self._is_up():
            if self._server.poll() is not None:
                raise PeerError(f"{name} ended with status {self._server.returncode} while it started")
            if monotonic() > give_up:
                raise PeerError(f"{name} did not come up within {START_S:g} s")
            sleep(LOOK_S)

    def _is_up(self) -> bool:
        try:
            return bool(get_json(f"{self._url}/health", timeout_s=5.0).get("status") == "ok")
        except PeerError:
            return False

    def _body(self, request: PeerRequest) -> dict[str, Any]:
        return {
            "prompt": list(request.prompt_ids),
            "n_predict": request.max_new_tokens,
            "ignore_eos": request.ignore_eos,  # a model's own GGUF file names its end-of-text token
            "seed": request.seed,
            "samplers": list(FILTERS),
            **{name: getattr(request, name) for name in FILTERS},
            "stream": True,
            "return_tokens": True,
            "cache_prompt": self._keeps_prompt,
        }


def server_flags(plan: PeerPlan, *, port: str) -> Sequence[str]:
    """The arguments of the server: our threads, length and dtypes, one slot."""
    kind, layers = CACHE_TYPES[plan.dtype], "0" if plan.device == "cpu" else "all"
    flags = [
        "--model", str(target_file(plan)), "--host", HOST, "--port", port, "--parallel", "1",
        "--ctx-size", str(plan.max_length), "--gpu-layers", layers,
        "--threads", str(plan.num_threads), "--threads-batch", str(plan.num_threads),
        "--cache-type-k", kind, "--cache-type-v", kind,
    ]  # fmt: skip
    for name, value in {**SPECULATION[plan.mode], **plan.settings}.items():
        flags += [f"--{name.replace('_', '-')}", str(value)] if name != "draft_weights" else []
    if plan.mode == "draft":
        flags += ["--model-draft", str(draft_file(plan))]
        flags += ["--cache-type-k-draft", kind, "--cache-type-v-draft", kind]
    return flags


def free_port() -> int:
    """A port that is not in use."""
    with socket(AF_INET, SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve(LlamaServerWriter)
