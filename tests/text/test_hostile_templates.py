"""Chat templates that would run for ever, or take all memory, take neither time nor memory from others."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import psutil
import pytest

from forerun.core.errors import ConfigError
from forerun.text.chat_template import ChatTemplate
from forerun.wires.bounded_child import LimitError, Limits

MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
GOOD = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ bos }}"
SHORT = Limits(max_s=0.5)


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source=source, special_tokens={"bos": "<s>"})


def processes_of(pid: int) -> Sequence[str]:
    return subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()


def until(holds: Callable[[], bool]) -> None:
    late = monotonic() + 120
    while not holds():
        assert monotonic() < late
        sleep(0.02)


@pytest.mark.parametrize(
    ("source", "error", "reason"),
    [
        (ENDLESS, LimitError, r"more than 0\.5 s"),
        ("{{ range(10**9) | list }}", ConfigError, "Range too big"),
        ("{{ 'x' * 10000000000 }}", LimitError, "more memory|more than"),
        ("{{ 'x' * 30000000 }}", LimitError, "more than"),
        ("{{ 10 ** (10 ** 8) }}", LimitError, "more than"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", ConfigError, "RecursionError|more than"),
        ("{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}", ConfigError, "unsafe"),
    ],
)
def test_a_hostile_template_is_ended_and_the_next_question_begins_anew(
    source: str, error: type[ConfigError], reason: str
) -> None:
    template = template_of("{% if messages[0].content == 'hi' %}" + source + "{% endif %}fine")
    good = [{"role": "user", "content": "ho"}]
    assert template.render(good) == "fine"
    with pytest.raises(error, match=rf"chat template(?s:.*)({reason})"):
        template.render(MESSAGES, limits=SHORT)
    assert template.render(good) == "fine"


def test_any_character_comes_back_as_it_was() -> None:
    strange = [{"role": "user", "content": 'ü\n"\\ \u2028\x00\U0001f600\ud800'}]
    assert template_of(GOOD).render(strange) == 'user: ü\n"\\ \u2028\x00\U0001f600\ud800<s>'


def test_threads_get_their_own_answers() -> None:
    template = template_of(GOOD)
    found = dict[int, str]()

    def ask(number: int) -> None:
        for _ in range(20):
            found[number] = template.render([{"role": "user", "content": str(number)}])
            assert found[number] == f"user: {number}<s>"

    threads = [Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"user: {number}<s>" for number in range(4)}


def test_closing_ends_a_question_of_another_thread() -> None:
    template = template_of(ENDLESS)
    errors = list[ConfigError]()

    def ask() -> None:
        try:
            template.render(MESSAGES, limits=Limits(max_s=60))
        except ConfigError as error:
            errors.append(error)

    before = set(processes_of(os.getpid()))
    thread = Thread(target=ask)
    thread.start()
    until(lambda: set(processes_of(os.getpid())) - before)
    template.close()
    thread.join(20)
    assert not thread.is_alive()
    assert errors


def test_its_process_ends_with_it() -> None:
    before = set(processes_of(os.getpid()))
    template = template_of(GOOD)
    assert set(processes_of(os.getpid())) <= before
    template.render(MESSAGES)
    assert len(set(processes_of(os.getpid())) - before) == 1
    del template
    assert set(processes_of(os.getpid())) <= before


def test_a_process_that_was_killed_leaves_none() -> None:
    program = (
        "from forerun.text.chat_template import ChatTemplate\n"
        f"template = ChatTemplate(source={ENDLESS!r}, special_tokens={{}})\ntemplate.start()\n"
        "print('begun', flush=True)\nimport time\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (child,) = processes_of(process.pid)
        process.kill()
    until(lambda: not Path(f"/proc/{child}/exe").exists())


def test_the_child_gets_nothing_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "sesame")
    template = template_of(GOOD)
    before = set(processes_of(os.getpid()))
    template.render(MESSAGES)
    (child,) = set(processes_of(os.getpid())) - before
    assert "sesame" not in str(psutil.Process(int(child)).environ())
