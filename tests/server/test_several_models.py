"""Several models behind one socket: loaded when they are asked for, freed for others, each with its own answers."""

import asyncio
import json
import shutil
import signal
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forerun import Engine, EngineConfig, SamplingParams
from forerun.checkpoints.open import builtin_folder
from forerun.core.drafter_config import NoDrafter, drafter_name
from forerun.server.guard.listening import bind, url_of
from forerun.server.run import make_server, run_until_end
from forerun.server.work.served_models import Room, ServedModels
from forerun.server.work.service import Service
from tests.cli.conftest import Run, run  # noqa: F401 - a fixture
from tests.server.holding import LONG, SHORT, SLOW, until
from tests.server.serving import CONFIG, ENGINE, events_of
from tests.server.strain.process import serving

PLAIN = replace(ENGINE, drafter=NoDrafter())
ONE = Room(max_loaded=1)


@dataclass(frozen=True, kw_only=True)
class ServedSeveral:
    """A server of several models that answers."""

    url: str
    models: ServedModels

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, verify=False)

    def service(self, name: str) -> Service:
        return self.models.find(name)

    def states(self) -> dict[str, str]:
        """By model, as clients see them."""
        with self.client() as client:
            return {item["id"]: item["status"]["value"] for item in client.get("/v1/models").json()["data"]}


@contextmanager
def served_several(*configs: EngineConfig, room: Room = ONE, **settings: Any) -> Iterator[ServedSeveral]:
    """A server of these engines, ended afterwards."""
    config = replace(CONFIG, **settings)
    listener = bind(config)
    is_ready = threading.Event()
    errors = list[BaseException]()

    def make(engine_config: EngineConfig) -> Service:
        name = drafter_name(engine_config.drafter)
        return Service(config, lambda: Engine(engine_config), target=engine_config.target, drafter_name=name)

    models = ServedModels([make(engine_config) for engine_config in configs], room)
    server = make_server(models, listener)
    url = url_of(listener)
    running = run_until_end(
        server, models, listener, on_ready=is_ready.set,
        on_end=lambda error: (errors.append(error), is_ready.set())[0],
    )  # fmt: skip
    thread = threading.Thread(target=lambda: asyncio.run(running))
    thread.start()
    try:
        assert is_ready.wait(60)
        assert errors == []
        yield ServedSeveral(url=url, models=models)
    finally:
        server.should_exit = True
        models.drain_soon()
        thread.join(60)
        assert not thread.is_alive()
        assert not any(service.thread.is_alive for service in models.services)


@pytest.fixture
def third(tmp_path: Path) -> str:
    """A third model, a copy of the built-in target in a folder."""
    return str(shutil.copytree(builtin_folder("builtin"), tmp_path / "third"))


def text_of(client: httpx.Client, model: str, **changes: Any) -> str:
    answer = client.post("/v1/completions", json={**SHORT, "max_tokens": 12, "model": model, **changes})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == model
    text: str = answer.json()["choices"][0]["text"]
    return text


def text_alone(config: EngineConfig) -> str:
    with Engine(config) as engine:
        return engine.generate(SHORT["prompt"], SamplingParams(max_new_tokens=12, ignore_eos=True)).text


def test_each_model_is_loaded_when_it_is_asked_for_and_answers_for_itself(third: str) -> None:
    configs = (ENGINE, replace(PLAIN, target="builtin-draft"), replace(PLAIN, target=third))
    with served_several(*configs, room=Room()) as server, server.client() as client:
        assert server.states() == {"builtin": "loaded", "builtin-draft": "unloaded", "third": "unloaded"}
        listed = client.get("/v1/models").json()["data"]
        assert ["max_model_len" in item for item in listed] == [True, False, False]
        texts = [text_of(client, name, temperature=0) for name in ("builtin", "builtin-draft", "third")]
        assert texts[0] == texts[2] != texts[1]
        assert texts[:2] == [text_alone(config) for config in configs[:2]]
        assert set(server.states().values()) == {"loaded"}
        assert client.get("/v1/forerun").json()["model"] == "builtin"
        about = [client.get("/v1/forerun", params={"model": item.target}).json() for item in configs]
        assert [(item["model"], item["drafter"]) for item in about] == [
            ("builtin", "draft_model"), ("builtin-draft", "none"), ("third", "none"),
        ]  # fmt: skip
        assert client.post("/tokenize", json={"prompt": "a", "model": "third"}).status_code == 200
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "model": "third"}
        assert client.post("/v1/chat/completions", json=chat).json()["model"] == "third"


def test_models_that_write_at_the_same_time_give_the_texts_that_they_give_alone(third: str) -> None:
    configs = (ENGINE, replace(PLAIN, target="builtin-draft"), replace(PLAIN, target=third))
    names = ("builtin", "builtin-draft", "third")
    with served_several(*configs, room=Room()) as server, server.client() as client, ThreadPoolExecutor(3) as pool:
        together = list(pool.map(lambda name: text_of(client, name, max_tokens=60, seed=1), names * 4))
        alone = [text_of(client, name, max_tokens=60, seed=1) for name in names]
        assert together == alone * 4


def test_at_the_end_a_request_that_waits_for_a_model_is_told_so() -> None:
    answers = list[httpx.Response]()

    def ask(url: str, asked: dict[str, Any]) -> None:
        answers.append(httpx.post(f"{url}/v1/completions", json=asked, timeout=60, trust_env=False))

    with served_several(SLOW, replace(PLAIN, target="builtin-draft")) as server:
        waits = {**SHORT, "model": "builtin-draft"}
        threads = [
            threading.Thread(target=ask, args=(server.url, asked)) for asked in ({**LONG, "max_tokens": 150}, waits)
        ]
        threads[0].start()
        until(lambda: server.service("builtin").thread.running is not None)
        threads[1].start()
        until(lambda: server.states()["builtin-draft"] == "loading")
    for thread in threads:
        thread.join(60)
    assert [answer.status_code for answer in answers] == [200, 503]
    assert answers[1].json()["error"]["code"] == "shutting_down"


def test_an_unknown_name_is_told_which_there_are() -> None:
    with served_several(PLAIN, replace(PLAIN, target="builtin-draft")) as server, server.client() as client:
        answer = client.post("/v1/completions", json={**SHORT, "model": "gpt-5"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert "which has builtin, builtin-draft" in answer.json()["error"]["message"]
        assert client.get("/v1/models/gpt-5").status_code == 404
        assert server.states()["builtin-draft"] == "unloaded"
        models = client.get("/openapi.json").json()["components"]["schemas"]["ChatRequest"]["properties"]["model"]
        assert models["enum"] == ["builtin", "builtin-draft", None]


def test_the_one_unused_longest_makes_room_and_its_memory_is_given_back(third: str) -> None:
    configs = (PLAIN, replace(PLAIN, target="builtin-draft"), replace(PLAIN, target=third))
    with served_several(*configs, room=Room(max_loaded=2)) as server, server.client() as client:
        first = text_of(client, "builtin", temperature=0)
        text_of(client, "builtin-draft")
        text_of(client, "builtin")
        engine = weakref.ref(server.service("builtin-draft").engine)
        text_of(client, "third")
        assert server.states() == {"builtin": "loaded", "builtin-draft": "unloaded", "third": "loaded"}
        assert engine() is None
        text_of(client, "builtin-draft")
        assert server.states() == {"builtin": "unloaded", "builtin-draft": "loaded", "third": "loaded"}
        assert text_of(client, "builtin", temperature=0) == first


def test_as_many_are_loaded_as_fit() -> None:
    room = Room(num_bytes=10, sizes={"builtin": 6, "builtin-draft": 5})
    with served_several(PLAIN, replace(PLAIN, target="builtin-draft"), room=room) as server, server.client() as client:
        text_of(client, "builtin-draft")
        assert server.states() == {"builtin": "unloaded", "builtin-draft": "loaded"}


def test_a_model_that_writes_is_not_freed_and_one_that_waits_gets_its_turn() -> None:
    """A long text is written, another model asked for, then the first again: they are answered in that order."""
    with served_several(SLOW, replace(PLAIN, target="builtin-draft")) as server, server.client() as client:
        long = {**LONG, "max_tokens": 200, "stream": True, "model": "builtin"}
        whole = list[str]()
        ended = list[str]()

        def ask(model: str) -> None:
            with server.client() as other:
                text_of(other, model)
                ended.append(model)

        with client.stream("POST", "/v1/completions", json=long) as stream:
            lines = stream.iter_lines()
            next(lines)
            threads = [threading.Thread(target=ask, args=(name,)) for name in ("builtin-draft", "builtin")]
            threads[0].start()
            until(lambda: server.states()["builtin-draft"] == "loading")
            threads[1].start()
            assert server.states()["builtin"] == "loaded"
            whole = list(lines)
            ended.append("the long one")
        for thread in threads:
            thread.join(60)
        assert ended == ["the long one", "builtin-draft", "builtin"]
        events = [json.loads(event) for event in events_of("\n".join(whole))[:-1]]
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert server.states() == {"builtin": "loaded", "builtin-draft": "unloaded"}


def test_a_model_that_cannot_be_loaded_is_an_error_of_its_requests_alone(third: str) -> None:
    config_file = Path(third) / "config.json"
    whole = config_file.read_text()
    with served_several(PLAIN, replace(PLAIN, target=third)) as server, server.client() as client:
        config_file.write_text("{}")
        answers = [client.post("/v1/completions", json={**SHORT, "model": "third"}) for _ in range(2)]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "model_not_loaded")
            assert "The model third cannot be loaded: " in answer.json()["error"]["message"]
            assert "config.json" in answer.json()["error"]["message"]
            assert str(Path(third).parent) not in answer.text
        assert client.get("/ready").status_code == 200
        text_of(client, "builtin")
        config_file.write_text(whole)
        text_of(client, "third")


def test_a_request_does_not_wait_for_a_model_for_ever() -> None:
    with (
        served_several(SLOW, replace(PLAIN, target="builtin-draft"), max_request_s=0.5) as server,
        server.client() as client,
    ):
        threading.Thread(target=lambda: httpx.post(f"{server.url}/v1/completions", json=LONG, timeout=60)).start()
        until(lambda: server.service("builtin").thread.running is not None)
        answer = client.post("/v1/completions", json={**SHORT, "model": "builtin-draft"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_numbers_have_the_models_name_and_go_on_after_it_was_freed() -> None:
    with served_several(PLAIN, replace(PLAIN, target="builtin-draft")) as server, server.client() as client:
        for name in ("builtin", "builtin-draft", "builtin"):
            text_of(client, name)
        samples = [
            (sample.name, sample.labels.get("model"), sample.value)
            for family in text_string_to_metric_families(client.get("/metrics").text)
            for sample in family.samples
        ]
        assert ("forerun:generation_tokens_total", "builtin", 24) in samples
        assert ("forerun:generation_tokens_total", "builtin-draft", 12) in samples
        assert [item[1:] for item in samples if item[0] == "forerun:ready"] == [("builtin", 1)]
        counted = [item[1] for item in samples if item[0] == "process_open_fds"]
        assert counted == ([None] if Path("/proc/self/fd").exists() else [])


def test_the_command_serves_several_and_ends_at_a_signal() -> None:
    with serving(
        "builtin-draft", "--drafter", "none", "--max-loaded", "1", "--threads", "1", "--port", "0", model=("builtin",)
    ) as server:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            assert client.get("/ready").status_code == 200
            for name in ("builtin-draft", "builtin"):
                text_of(client, name)
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("builtin", "builtin-draft", "--replicas", "2"), "replicas serve one model: name one, not 2"),
        (("builtin", "builtin-draft", "--served-model-name", "x"), "--served-model-name names one model, and 2 are"),
        (("builtin", "builtin-draft", "builtin"), "two models would have the name builtin for clients"),
        (("builtin", "builtin-draft", "--model", "builtin"), "the model is named twice"),
        (("builtin", "--max-loaded", "0"), "--max-loaded 0 must be >= 1"),
    ],
)
def test_what_only_one_model_can_have_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:  # noqa: F811
    finished = run("serve", *arguments, "--port", "0")
    assert finished.exit_code == 2
    assert message in " ".join(finished.output.split())


def test_a_model_that_nobody_uses_is_unloaded_and_loaded_again() -> None:
    expected = text_alone(PLAIN)
    with served_several(PLAIN, keep_alive_s=0.3) as server, server.client() as client:
        for _ in range(2):
            assert text_of(client, "builtin") == expected
            until(lambda: server.states() == {"builtin": "unloaded"})
            assert client.get("/health").status_code == client.get("/ready").status_code == 200
        assert not server.service("builtin").thread.is_alive


def test_a_model_in_use_is_not_unloaded() -> None:
    with served_several(SLOW, keep_alive_s=0.05) as server, server.client() as client:
        body = {**SHORT, "max_tokens": 30, "model": "builtin"}
        assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 30


def test_an_unused_model_is_unloaded_too() -> None:
    with served_several(PLAIN, keep_alive_s=0.1) as server:
        until(lambda: server.states() == {"builtin": "unloaded"})
