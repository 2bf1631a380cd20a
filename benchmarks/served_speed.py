"""The cost of serving: tokens/s and time to first token from the server, and from the same engine called directly.

python benchmarks/served_speed.py [--target smollm2 --draft smollm2-draft] [--data mt_bench] [--repeats 3]

One engine answers both ways, question by question in turn, the caches emptied before each answer. The client of the
server is a process of its own, as a user's is. Both ways are timed where the text is used: from the request to the
first piece, and from the first piece to the last.
"""

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from time import perf_counter

from common import ask, config_of, standard_arguments, write_results

from forerun import DraftModel, Engine, SamplingParams
from forerun.server.config import ServerConfig
from forerun.server.guard.listening import bind
from forerun.server.run import make_server, run_until_end
from forerun.server.work.service import Service

CLIENT = "--as-client"


@contextmanager
def served(engine: Engine) -> Iterator[int]:
    """A server of this engine; its port."""
    config = ServerConfig(port=0)
    listener, is_ready = bind(config), threading.Event()
    service = Service(config, lambda: nullcontext(engine), target=engine.config.target, on_ready=is_ready.set)
    server = make_server(service, listener)
    port: int = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(run_until_end(server, service, listener)))
    thread.start()
    is_ready.wait()
    yield port
    server.should_exit = True
    thread.join()


def play_client(port: int) -> None:
    """Send the requests on stdin, one per line, and print the times of the first and the last piece."""
    for line in sys.stdin:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        began = perf_counter()
        connection.request("POST", "/v1/completions", line.encode(), {"content-type": "application/json"})
        answer, times = connection.getresponse(), []
        while piece := answer.readline():
            if piece.startswith(b"data: {"):
                times.append(perf_counter())
        connection.close()
        print(json.dumps([times[0] - began, times[-1] - times[0]]), flush=True)


def directly(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[float, float]:
    """Seconds to the first step, and from it to the last."""
    began = perf_counter()
    times = [perf_counter() for _ in engine.stream(prompt, params)]
    return times[0] - began, times[-1] - times[0]


def measure(
    engine: Engine, client: subprocess.Popen[str], arguments: argparse.Namespace, temperature: float
) -> dict[str, object]:
    """Measure both ways over all prompts."""
    assert client.stdin is not None
    assert client.stdout is not None
    settings = {"temperature": temperature, "seed": 1, "ignore_eos": True}
    params = SamplingParams(max_new_tokens=arguments.num_new, **settings)
    ratios, delays, speeds = [], [], []
    for _, prompt in ask(arguments, arguments.num_prompts) * arguments.repeats:
        engine.forget()
        first_s, rest_s = directly(engine, prompt, params)
        engine.forget()
        asked = {"prompt": prompt, "max_tokens": arguments.num_new, "stream": True, **settings}
        print(json.dumps(asked), file=client.stdin, flush=True)
        served_first_s, served_rest_s = json.loads(client.stdout.readline())
        ratios.append(rest_s / served_rest_s)
        delays.append(served_first_s - first_s)
        speeds.append(arguments.num_new / rest_s)
    return {
        "target": arguments.target,
        "temperature": temperature,
        "answers": len(ratios),
        "tokens/s at once": f"{median(speeds):.0f}",
        "served over at once": f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        "first token later by ms": f"{median(delays) * 1e3:.2f} (to {max(delays) * 1e3:.2f})",
    }


def main() -> None:
    parser = standard_arguments(__doc__, "served_speed", num_prompts=10, num_new=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument(CLIENT, type=int, help="port of a server, for the process that this script starts itself")
    arguments = parser.parse_args()
    if arguments.as_client is not None:
        play_client(arguments.as_client)
        return
    with Engine(config_of(arguments, drafter=DraftModel(model=arguments.draft))) as engine, served(engine) as port:
        command = [sys.executable, __file__, CLIENT, str(port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            rows = [measure(engine, client, arguments, temperature) for temperature in arguments.temperatures]
            client.communicate()
    write_results(arguments, "What serving costs", rows, ["Medians over answers, with the extremes."])


if __name__ == "__main__":
    main()
