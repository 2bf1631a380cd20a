"""A server with a completions endpoint over HTTP: one that is already running, or one that a command line starts."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from socket import AF_INET, SOCK_STREAM, socket
from tempfile import TemporaryFile
from time import monotonic, sleep
from typing import Any, Final

from forerun_lab.bench.peers.event_stream import get_json, post_events, status_of
from forerun_lab.bench.peers.messages import FILTERS, PeerError, PeerPlan, PeerRequest
from forerun_lab.bench.peers.process import Arrivals, serve, tail_of
from forerun_lab.bench.records.answers import Turn

HOST: Final = "127.0.0.1"
START_S: Final = 600.0  # vLLM compiles its model
LOOK_S: Final = 0.05
OK: Final = 200
NOT_FOUND: Final = 404
CACHE_TYPES: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
LLAMA_FLAGS: Final = (
    "--model {target} --host {host} --port {port} --parallel 1 --ctx-size {max_length} --gpu-layers {gpu_layers} "
    "--threads {num_threads} --threads-batch {num_threads} --cache-type-k {cache_type} --cache-type-v {cache_type}"
)
MODES: Final[Mapping[str, Mapping[str, str]]] = {  # settings of llama-server, which a peer's own override
    "plain": {},
    "draft": {
        "spec_type": "draft-simple",
        "model_draft": "{draft}",
        "cache_type_k_draft": "{cache_type}",
        "cache_type_v_draft": "{cache_type}",
    },
    "lookup": {"spec_type": "ngram-simple"},
    "default": {"spec_default": ""},  # as its authors recommend it; a switch without a value
    "suffix": {"spec_type": "suffix"},
    "ik_draft": {"spec_type": "draft", "model_draft": "{draft}"},  # its server takes settings within spec_type only
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How one kind of server is started, and its extensions to OpenAI's API.

    Args:
        program: starts it; "" if the user must give the command.
        flags: follow the program. The names in braces are filled in; a program with `{port}` gets no flags.
        path: of the endpoint for completions.
        extra: request fields that make the server send ids or counts in every event, or sample in our order.
        forget_path: the path that empties the prefix cache; "" for a server that reads `cache_prompt` in a request.
    """

    program: str = ""
    flags: str = ""
    path: str = "/v1/completions"
    extra: Mapping[str, Any] = field(default_factory=dict)
    forget_path: str = ""


DIALECTS: Final[Mapping[str, Dialect]] = {
    "llama_server": Dialect(
        program="llama-server",
        flags=LLAMA_FLAGS,
        path="/completion",  # the other one sends no ids
        extra={"return_tokens": True, "samplers": FILTERS, "top_k": 0},
    ),
    "ik_llama_server": Dialect(
        flags=LLAMA_FLAGS,
        extra={"timings_per_token": True, "samplers": FILTERS, "top_k": 0},  # no ids; the timings have a count
    ),
    "vllm": Dialect(
        program="env VLLM_SERVER_DEV_MODE=1 vllm serve",  # only then it has /reset_prefix_cache
        flags="{target} --host {host} --port {port} --dtype {dtype} --max-model-len {max_length} --max-num-seqs 1",
        extra={"return_token_ids": True},
        forget_path="/reset_prefix_cache",
    ),
    "sglang": Dialect(
        program="sglang serve",
        flags="--model-path {target} --host {host} --port {port} --dtype {dtype} --context-length {max_length} "
        "--max-running-requests 1",
        forget_path="/flush_cache",
    ),
    "openai_server": Dialect(),
}


class ServerWriter:
    """One stream from a server. Its times include HTTP."""

    def __init__(self, plan: PeerPlan, kind: str) -> None:
        self._dialect = DIALECTS[kind]
        self._stack = ExitStack()
        self._keeps_prompt = True
        try:
            url = plan.urls.get(plan.name) or self._stack.enter_context(started(command_of(plan, kind)))
            self._url = url.rstrip("/").removesuffix("/v1")
            self.model = find_model(self._url)
        except BaseException:
            self.close()
            raise

    def write(self, request: PeerRequest) -> Turn:
        """The server's answer: text, and ids if it sends them.

        Raises:
            PeerError: the server refused, or cannot be reached.
        """
        arrivals = Arrivals()
        for event in post_events(self._url + self._dialect.path, self._body(request)):
            if "error" in event:
                raise PeerError(f"{self._url}: {event['error']}")
            outputs = event.get("choices") or ([event] if event.get("tokens") else [])
            arrivals.add(
                [int(idx) for output in outputs for idx in output.get("token_ids") or output.get("tokens") or ()],
                text="".join(output.get("text") or output.get("content") or "" for output in outputs),
                num_tokens=count_in(event),
                is_output=bool(outputs),
            )
        self._keeps_prompt = True
        if not arrivals.num_tokens:
            raise PeerError(f"{self._url} sent neither tokens nor their number: a version of 2025 or later is needed")
        return arrivals.turn(len(request.prompt_ids))

    def forget(self) -> None:
        """Empty the prefix cache if the server can do that; else make it compute the whole next prompt."""
        self._keeps_prompt = False
        if self._dialect.forget_path:
            status = status_of("POST", self._url + self._dialect.forget_path)
            if status >= 400 and status != NOT_FOUND:
                raise PeerError(f"{self._url} answered {status} when asked to empty its cache: is it still at work?")

    def close(self) -> None:
        """Stop the server if it was started here."""
        self._stack.close()

    def _body(self, request: PeerRequest) -> dict[str, Any]:
        filters = {name: getattr(request, name) for name in FILTERS if name != "top_k" or request.top_k}
        return {
            "model": self.model,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_new_tokens,
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "cache_prompt": self._keeps_prompt,
            **self._dialect.extra,
            **filters,
        }


def count_in(event: Mapping[str, Any]) -> int:
    """The server's own count of new tokens so far; 0 if it does not send one."""
    counts = ("usage", "completion_tokens"), ("timings", "predicted_n")
    return next((int(count) for part, name in counts if (count := (event.get(part) or {}).get(name))), 0)


def command_of(plan: PeerPlan, kind: str) -> list[str]:
    """The command line that starts a server with our model, threads, length and dtype, except for its port."""
    dialect = DIALECTS[kind]
    program = plan.commands.get(plan.name, dialect.program)
    values = {
        "target": plan.target,
        "draft": plan.draft,
        "host": HOST,
        "dtype": plan.dtype,
        "max_length": plan.max_length,
        "num_threads": plan.num_threads,
        "gpu_layers": 0 if plan.device == "cpu" else 999,
        "cache_type": CACHE_TYPES[plan.dtype],
    }
    words = shlex.split(program)
    if "{port}" not in program:
        words += dialect.flags.split()
        for name, value in {**MODES[plan.mode], **plan.settings}.items():
            words += filter(None, (f"--{name.replace('_', '-')}", str(value)))
    return [fill(word, values) for word in words]


def fill(word: str, values: Mapping[str, Any]) -> str:
    """A word of a command with the names in braces replaced."""
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word


def find_program_fault(plan: PeerPlan, name: str, kind: str) -> str | None:
    """The reason why the server cannot be started, or None."""
    command = plan.commands.get(name, DIALECTS[kind].program)
    if not command or (not DIALECTS[kind].flags and "{port}" not in command):
        return f"no address and no command: give --url {name}=URL, or --serve '{name}=COMMAND --port {{port}}'"
    program, *words = shlex.split(command)
    if program == "env":  # which sets variables for the program that follows
        program = next((word for word in words if "=" not in word), program)
    if shutil.which(program):
        return None
    return f"{program} is not a program here: name it with --serve {name}=COMMAND, or a running server with --url"


@contextmanager
def started(command: Sequence[str]) -> Iterator[str]:
    """Start a server with this command, `{port}` replaced by a free port; yields its address, and ends it afterwards.

    Raises:
        PeerError: it ended, or did not start in time.
    """
    with socket(AF_INET, SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    words = [fill(word, {"port": port}) for word in command]
    url = f"http://{HOST}:{port}"
    give_up = monotonic() + START_S
    with (
        TemporaryFile() as output,
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT) as server,
    ):
        try:
            while not is_up(url):
                if server.poll() is not None or monotonic() > give_up:
                    status = server.poll()
                    fault = f"did not start within {START_S:g} s" if status is None else f"ended with status {status}"
                    raise PeerError(f"{shlex.join(words)} {fault}; its last words:\n{tail_of(output)}")
                sleep(LOOK_S)
            yield url
        finally:
            server.terminate()


def is_up(url: str) -> bool:
    """Whether the server has loaded its model. Not every server has the path; llama-server answers 503 until then."""
    try:
        return status_of("GET", f"{url}/health", timeout_s=5.0) in (OK, NOT_FOUND)
    except PeerError:
        return False


def find_model(url: str) -> str:
    models = get_json(f"{url}/v1/models").get("data") or []
    if not models:
        raise PeerError(f"{url} serves no model: start it with one")
    return str(models[0]["id"])


if __name__ == "__main__":
    serve(lambda plan: ServerWriter(plan, sys.argv[1]))
