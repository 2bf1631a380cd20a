"""Data sets: found, made from raw rows, fetched whole or not at all."""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from forerun.core.errors import ConfigError
from forerun_lab.bench.data.datasets import load_dataset
from forerun_lab.bench.data.download import fetch
from forerun_lab.bench.data.sources import SOURCES
from tests.bench.samples import as_bytes

EAGLE_SETS = ("mt_bench", "humaneval", "gsm8k", "alpaca", "sum", "qa")
SWIFT_SETS = ("swift_cnndm", "swift_gsm8k", "swift_tinystories", "swift_humaneval")
NOWHERE = "http://127.0.0.1:9"
SPEC_BENCH = "/" + SOURCES["spec_bench"].downloads[0].path


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(as_bytes([json.dumps(row) for row in rows]))
    return path


class Server:
    """A real server on this machine; an answer is what a function does with the request's handler."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.close_connection = True
                if self.path in outer.answers:
                    outer.answers[self.path](self)
                else:
                    self.send_error(404)

            def log_message(self, *arguments: object) -> None:
                """Tests need no log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def send(
        self, path: str, data: bytes, *, promised: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        """Answer with `data`, after promising another length if one is given."""

        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            for name, value in (
                headers or {"Content-Length": str(len(data) if promised is None else promised)}
            ).items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(data)

        self.answers[path] = answer

    def redirect(self, path: str, to: str) -> None:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(302)
            handler.send_header("Location", to)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        self.answers[path] = answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def rows(num_rows: int) -> bytes:
    return as_bytes([json.dumps({"question_id": number, "turns": [f"Who is {number}?"]}) for number in range(num_rows)])


def test_the_built_in_set_needs_no_file_and_no_network(tmp_path: Path) -> None:
    found = load_dataset("builtin", cache=tmp_path, base_url=NOWHERE)
    assert len(found.questions) == 89
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_users_is_a_data_set_of_its_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "mine.jsonl", [{"prompt": "Who?"}])
    found = load_dataset(str(path), cache=tmp_path)
    assert (found.name, found.path, found.questions[0].turns) == ("mine", path, ("Who?",))


@pytest.mark.parametrize("name", [*EAGLE_SETS, "spec_bench"])
def test_a_set_is_taken_from_the_folder_then_from_the_cache(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    cache = tmp_path / "cache"
    write_rows(cache / name / "question.jsonl", [{"turns": ["cached"]}])
    assert load_dataset(name, folder=folder, cache=cache, base_url=NOWHERE).questions[0].turns == ("cached",)
    path = write_rows(folder / name / "question.jsonl", [{"turns": ["mine"]}])
    found = load_dataset(name, folder=folder, cache=cache, base_url=NOWHERE)
    assert (found.questions[0].turns, found.path) == (("mine",), path)
    assert found.licence
    assert "question.jsonl" in found.source


@pytest.mark.parametrize("name", [*EAGLE_SETS, "spec_bench", *SWIFT_SETS])
def test_a_set_that_cannot_be_had_says_which_file_to_put_where(tmp_path: Path, server: Server, name: str) -> None:
    wanted = "raw.jsonl" if name in SWIFT_SETS else "question.jsonl"
    with pytest.raises(ConfigError) as caught:
        load_dataset(name, folder=tmp_path / "folder", cache=tmp_path / "cache", base_url=server.url)
    assert f"{tmp_path / 'folder' / name / wanted}" in str(caught.value)
    assert ("status 404" in str(caught.value)) is bool(SOURCES[name].downloads)
    assert not (tmp_path / "cache").exists()


def test_without_a_network_the_message_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be fetched \(URLError.*place the published file at .*mt_bench"):
        load_dataset("mt_bench", cache=tmp_path, base_url=NOWHERE)


def test_a_fetched_set_is_kept_and_not_fetched_again(tmp_path: Path, server: Server) -> None:
    server.send(SPEC_BENCH, rows(480))
    first = load_dataset("spec_bench", cache=tmp_path, base_url=server.url)
    again = load_dataset("spec_bench", cache=tmp_path, base_url=server.url)
    assert first == again
    assert len(first.questions) == 480
    assert server.asked == [SPEC_BENCH]
    assert [path.name for path in (tmp_path / "spec_bench").iterdir()] == ["question.jsonl"]


def test_another_file_under_a_pinned_address_is_refused(tmp_path: Path, server: Server) -> None:
    path = "/" + SOURCES["mt_bench"].downloads[0].path
    server.send(path, rows(80))
    with pytest.raises(ConfigError, match=r"sha256 is [0-9a-f]{64}, not 119565ad"):
        load_dataset("mt_bench", cache=tmp_path, base_url=server.url)
    assert list(tmp_path.iterdir()) == []


def test_a_broken_fetch_leaves_the_file_that_was_there(tmp_path: Path, server: Server) -> None:
    path = write_rows(tmp_path / "question.jsonl", [{"turns": ["old"]}])
    before = path.read_bytes()
    server.send("/wrong", rows(3))
    with pytest.raises(ConfigError):
        fetch(f"{server.url}/wrong", path, num_rows=3, sha256="0" * 64)
    assert path.read_bytes() == before


def test_a_packed_file_is_checked_packed_and_kept_unpacked(tmp_path: Path, server: Server) -> None:
    packed = gzip.compress(rows(3))
    server.send("/raw.jsonl.gz", packed)
    path = tmp_path / "raw.jsonl"
    fetch(f"{server.url}/raw.jsonl.gz", path, num_rows=3, sha256=hashlib.sha256(packed).hexdigest())
    assert path.read_bytes() == rows(3)
    server.send("/raw.jsonl.gz", packed[:-9])
    with pytest.raises(ConfigError, match="not a complete gzip file"):
        fetch(f"{server.url}/raw.jsonl.gz", path, num_rows=3)


def test_a_redirection_is_not_followed(tmp_path: Path, server: Server) -> None:
    server.send("/there", rows(1))
    server.redirect("/here", f"{server.url}/there")
    with pytest.raises(ConfigError, match="status 302"):
        fetch(f"{server.url}/here", tmp_path / "question.jsonl", num_rows=1)
    assert server.asked == ["/here"]


@pytest.mark.parametrize("url", ["http://example.org/x", "file:///etc/passwd", "ftp://127.0.0.1/x", "question.jsonl"])
def test_only_https_is_fetched(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match="https://"):
        fetch(url, tmp_path / "question.jsonl", num_rows=1)


def test_summaries_are_asked_for_as_swift_words_them(tmp_path: Path) -> None:
    raw = [{"article": f"A{number}", "highlights": f"one{number}\ntwo"} for number in range(3)]
    write_rows(tmp_path / "swift_cnndm" / "raw.jsonl", raw)
    found = load_dataset("swift_cnndm", folder=tmp_path, cache=tmp_path / "cache")
    prefix = "Article: A0\nSummary: one0two\nArticle: "
    assert {question.question_id: question.turns[0] for question in found.questions} == {
        1: f"{prefix}A1\nSummary:",
        2: f"{prefix}A2\nSummary:",
    }


def test_five_problems_are_shown_solved_and_shots_of_their_own_leave_every_row_to_be_asked(tmp_path: Path) -> None:
    problems = [{"question": f"q{number}", "answer": f"a{number}"} for number in range(7)]
    raw = write_rows(tmp_path / "swift_gsm8k" / "raw.jsonl", problems)
    questions = load_dataset("swift_gsm8k", folder=tmp_path, cache=tmp_path).questions
    assert {question.question_id for question in questions} == {5, 6}
    assert all(question.turns[0].count("\nAnswer: a") == 5 for question in questions)
    assert all(question.turns[0].endswith(f"\n\nQuestion: q{question.question_id}\nAnswer:") for question in questions)
    write_rows(raw.with_name("shots.jsonl"), [{"question": f"s{number}", "answer": "t"} for number in range(6)])
    questions = load_dataset("swift_gsm8k", folder=tmp_path, cache=tmp_path).questions
    assert {question.question_id for question in questions} == set(range(7))
    assert questions[0].turns[0].startswith("Question: s0\nAnswer: t\n\nQuestion: s1")
    assert "s5" not in questions[0].turns[0]


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        ([{"question": "q", "answer": "a"}] * 5, "has 5 rows"),
        ([{"question": "q"}] * 6, r"raw\.jsonl:\d: answer is missing"),
    ],
)
def test_raw_rows_that_do_not_do_are_named(tmp_path: Path, raw: list[dict[str, Any]], complaint: str) -> None:
    write_rows(tmp_path / "swift_gsm8k" / "raw.jsonl", raw)
    with pytest.raises(ConfigError, match=complaint):
        load_dataset("swift_gsm8k", folder=tmp_path, cache=tmp_path)
