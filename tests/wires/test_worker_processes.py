"""Where connections to a worker come from, when there is none to be had, or none of use."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from forerun.core.errors import ConfigError
from forerun.wires import channel
from forerun.wires.children import start_child
from forerun.wires.endpoint import Address, Admission, listen
from forerun.wires.forkserver import MAX_DELAY_S, delay_s
from forerun.wires.worker_processes import RemoteSupply

HANG_S = 60.0
HERE = Address(server="127.0.0.1", port=0)


def test_retries_come_later_each_time_up_to_a_bound_however_many_there_were() -> None:
    waits = [delay_s(number) for number in (1, 2, 3, 10, 100, 10_000)]
    assert waits == sorted(waits)
    assert waits[0] > 0
    assert waits[-1] == MAX_DELAY_S


@pytest.mark.parametrize("is_useful", [False, True], ids=["of no use", "healthy"])
def test_a_worker_that_answers_and_is_of_no_use_is_not_asked_without_end(is_useful: bool) -> None:
    listener = listen(Address(server="127.0.0.1", port=0), None)
    num_accepted = 0
    is_over = threading.Event()

    def answer() -> None:
        nonlocal num_accepted
        admission = Admission(listener, None, handshake_s=HANG_S)
        while not is_over.is_set():
            connection = admission.accept(0.2)
            if connection is not None:
                num_accepted += 1
                connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    supply = RemoteSupply(Address(server="127.0.0.1", port=listener.getsockname()[1]), None)
    end = time.monotonic() + 1.0
    num_taken = 0
    while time.monotonic() < end or (is_useful and num_taken < 5 and time.monotonic() < end + HANG_S):
        channel = supply.take()
        if channel is not None:
            num_taken += 1
            if is_useful:
                supply.mark_healthy()
            channel.close()  # as a caller hangs up that does not like what it hears
        time.sleep(0.001)
    supply.close()
    is_over.set()
    thread.join(HANG_S)
    listener.close()
    assert num_taken >= 5 if is_useful else 1 <= num_taken <= 5  # within a second tries at 0, 0.1, 0.3 and 0.7 s


@pytest.mark.parametrize(
    "begin",
    [lambda: RemoteSupply(HERE, None), lambda: start_child(lambda *_: ["true"]), lambda: listen(HERE, None)],
    ids=["remote", "child", "worker"],
)
def test_windows_refuses_other_processes(monkeypatch: pytest.MonkeyPatch, begin: Callable[[], object]) -> None:
    monkeypatch.setattr(channel, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(ConfigError, match="on Windows no other process drafts"):
        begin()
