"""forerun worker, run as a user runs it, and engines that have their drafts from it."""

import json
import logging
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from forerun import Engine, EngineConfig, Generation, NoDrafter, Parallel, SamplingParams
from tests.cli.conftest import Run, command, environment
from tests.marks import rest_slow
from tests.patience import drafted_answer
from tests.varied import NO_FILLING

HANG_S = 150.0
PROMPT = "def read_lines(path):\n    "
GREEDY = SamplingParams(max_new_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, seed=3, max_new_tokens=40, ignore_eos=True)
READY = re.compile(r"drafts for targets on (127\.0\.0\.1:\d+)$")


class Worker(NamedTuple):
    """A worker that listens."""

    process: "subprocess.Popen[str]"
    address: str


@contextmanager
def worker_of(*arguments: str) -> Iterator[Worker]:
    process = subprocess.Popen(
        command("worker", *arguments, "--listen", "127.0.0.1:0"),
        env=environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline().strip()
            found = READY.search(line)
            assert found is not None, f"{line}\n{process.stderr.read()}"
            yield Worker(process, found[1])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with worker_of() as worker:
        yield worker


@pytest.fixture(scope="module")
def key_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two files with two keys."""
    folder = tmp_path_factory.mktemp("keys")
    paths = (folder / "key", folder / "other_key")
    for path in paths:
        path.touch(mode=0o600)
        path.write_text(f"{path.name} of thirty-two characters and more")
    return str(paths[0]), str(paths[1])


@pytest.fixture(scope="module")
def keyed_worker(key_files: tuple[str, str]) -> Iterator[Worker]:
    """A worker that knows the first key."""
    with worker_of("--key-file", key_files[0]) as worker:
        yield worker


@pytest.fixture(scope="module")
def plain_engine() -> Iterator[Engine]:
    with Engine(EngineConfig(drafter=NoDrafter(), num_threads=1)) as engine:
        yield engine


def engine_at(address: str, key_file: str | None = None) -> Engine:
    """An engine with no drafts but that worker's, paced to leave it time even where both share one core."""
    drafter = Parallel(address=address, key_file=key_file)
    return Engine(EngineConfig(drafter=drafter, device="paced:target=5ms", num_threads=1), policies=NO_FILLING)


def assert_same(ours: Generation, plain: Generation) -> None:
    assert (ours.token_ids, ours.text, ours.finish_reason) == (plain.token_ids, plain.text, plain.finish_reason)


@pytest.mark.parametrize(
    ("arguments", "message"), [((), "--listen 127.0.0.1:7070"), (("--listen", "0.0.0.0:0"), "give a key file")]
)
def test_a_worker_without_an_address_or_open_to_strangers_is_refused(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    finished = run("worker", *arguments)
    assert (finished.exit_code, finished.stdout) == (2, "")
    assert finished.stderr.startswith("forerun: error: ")
    assert message in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--listen", "7070"), 2, "is not host:port"),
        (("--listen", "127.0.0.1:0", "--key-file", "no/such/key"), 2, "key file no/such/key cannot be read"),
        (("--listen", "127.0.0.1:0", "--cores", "two"), 2, "--cores 'two' must be numbers"),
        (("no/such/model", "--listen", "127.0.0.1:0"), 5, "no/such/model"),
        (("builtin", "--listen", "127.0.0.1:0", "--skip", "layers 3 to 5"), 2, "must look like attention:3,5;mlp:4"),
        (("builtin", "--listen", "127.0.0.1:0", "--skip", "mlp:four"), 2, "skipped sublayers 'mlp:four' must look"),
        (("builtin", "--listen", "no host", "--skip", "mlp:12"), 2, "12 layers"),
        (("builtin", "--listen", "127.0.0.1:0", "--skip", "mlp:4", "--ranks", "2"), 2, "use --ranks 1"),
        (("--listen", "127.0.0.1:0", "--ranks", "65"), 2, "65 must lie in [1, 64]"),
        (("--role", "target"), 2, "use --join HOST:PORT"),
        (("--role", "target", "--join", "7070"), 2, "is not host:port"),
        (("--listen", "127.0.0.1:0", "--join", "127.0.0.1:1"), 2, "use --role target"),
    ],
)
def test_a_worker_that_cannot_serve_says_why(run: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    shown = run("worker", *arguments)
    assert (shown.exit_code, shown.stdout) == (code, "")
    assert message in shown.stderr


def test_a_worker_with_a_part_of_the_target_drafts_for_it(plain_engine: Engine) -> None:
    with worker_of("builtin", "--skip", "attention:3,5;mlp:4") as worker, engine_at(worker.address) as engine:
        assert_same(drafted_answer(engine, PROMPT, GREEDY), plain_engine.generate(PROMPT, GREEDY))


@pytest.mark.slow
def test_a_worker_whose_model_several_processes_share_drafts(plain_engine: Engine) -> None:
    with worker_of("--ranks", "2") as worker, engine_at(worker.address) as engine:
        assert_same(drafted_answer(engine, PROMPT, GREEDY), plain_engine.generate(PROMPT, GREEDY))


def test_a_listening_worker_drafts_and_the_text_is_the_plain_one(worker: Worker, plain_engine: Engine) -> None:
    with engine_at(worker.address) as engine:
        for params in (GREEDY, SAMPLED):
            assert_same(drafted_answer(engine, PROMPT, params), plain_engine.generate(PROMPT, params))


def test_the_command_line_finds_the_worker_and_draws_when_it_was_at_work(
    worker: Worker, run: Run, tmp_path: Path, plain_engine: Engine
) -> None:
    path = tmp_path / "run.json"
    shown = run(
        *("generate", "--drafter", "parallel", "--drafter-address", worker.address, "--device", "paced:target=5ms"),
        *("-p", PROMPT, "-n", "40", "--ignore-eos", "--threads", "1", "--json", "--timeline", str(path)),
    )
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert result["text"] == plain_engine.generate(PROMPT, GREEDY).text
    assert result["stats"]["num_drafted"] > 0
    drafted = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "draft"]
    assert len(drafted) > 0


def test_with_another_key_the_engine_decodes_plainly_and_says_so(
    keyed_worker: Worker, plain_engine: Engine, key_files: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), engine_at(keyed_worker.address, key_files[1]) as engine:
        ours = engine.generate(PROMPT, SAMPLED)
    assert_same(ours, plain_engine.generate(PROMPT, SAMPLED))
    assert (ours.stats.num_drafted, ours.stats.num_rounds_down) == (0, ours.stats.num_rounds)
    assert "do both have the same key" in caplog.text
    assert keyed_worker.process.stderr is not None
    assert "turned away a connection" in keyed_worker.process.stderr.readline()


@pytest.mark.parametrize("number", rest_slow([signal.SIGTERM, signal.SIGINT], 1))
def test_a_signal_ends_a_worker_quietly_and_the_engine_goes_on_without_it(
    number: signal.Signals, plain_engine: Engine
) -> None:
    with worker_of() as worker, engine_at(worker.address) as engine:
        stream = engine.stream(PROMPT, SAMPLED)
        next(stream)
        worker.process.send_signal(number)
        _, errors = worker.process.communicate(timeout=HANG_S)
        ours = stream.result()
    assert worker.process.returncode in (0, 128 + number, -number)
    assert "Traceback" not in errors
    assert_same(ours, plain_engine.generate(PROMPT, SAMPLED))
    assert ours.stats.num_rounds_down > 0
