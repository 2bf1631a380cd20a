"""What one end takes arrives at the other whole and in order, whatever the reader and the network do."""

import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from forerun.wires.channel import Channel

HANG_S = 60.0
LENGTH = struct.Struct(">I")
Pair = tuple[Channel, socket.socket]

pytestmark = pytest.mark.timeout(2 * HANG_S)


def unix_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        return left, listener.accept()[0]


@pytest.fixture(params=[unix_pair, tcp_pair], ids=["unix", "tcp"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A channel and the bare socket at its other end."""
    left, right = request.param()
    right.settimeout(HANG_S)
    channel = Channel(left)
    yield channel, right
    channel.close()
    right.close()


def frame(message: bytes) -> bytes:
    return LENGTH.pack(len(message)) + message


def read_frame(read: Callable[[int], bytes]) -> bytes | None:
    """The next message; None at the end, which must not cut one."""
    head = read(LENGTH.size)
    if not head:
        return None
    assert len(head) == LENGTH.size
    (length,) = LENGTH.unpack(head)
    message = read(length)
    assert len(message) == length
    return message


def random_messages(rng: random.Random, num_messages: int) -> list[bytes]:
    return [rng.randbytes(rng.choice([0, 1, 30, 3_000, 300_000])) for _ in range(num_messages)]


def send_all(channel: Channel, data: bytes) -> None:
    while not channel.send(data):
        assert channel.is_open
        channel.wait(0.001)


def drain(channel: Channel) -> None:
    """Wait until no rest is left, which shows in an empty message being taken."""
    while not channel.send(b""):
        assert channel.is_open
        channel.wait(0.001)


def clog(channel: Channel) -> bytes:
    """Send until a rest is pending; return all that was taken."""
    taken = b""
    chunk = bytes(range(256)) * 4096
    while channel.send(chunk):
        taken += chunk
    assert channel.is_open
    return taken


def receive_until_closed(channel: Channel) -> bytes:
    data = b""
    while channel.is_open:
        assert channel.wait(HANG_S)
        data += channel.receive()
    return data


def test_messages_arrive_whole_and_in_order_at_a_slow_reader(pair: Pair) -> None:
    channel, other = pair
    rng = random.Random(1)
    messages = random_messages(rng, 200)
    arrived: list[bytes] = []

    def read_slowly() -> None:
        with other.makefile("rb", buffering=4096) as file:
            while (message := read_frame(file.read)) is not None:
                arrived.append(message)
                if len(arrived) % 20 == 0:
                    time.sleep(0.01)

    reader = threading.Thread(target=read_slowly)
    reader.start()
    for message in messages:
        send_all(channel, frame(message))
    drain(channel)
    channel.close()
    reader.join(HANG_S)
    assert arrived == messages


def test_a_refused_message_leaves_no_trace(pair: Pair) -> None:
    channel, other = pair
    messages = random_messages(random.Random(2), 300)
    taken = []
    arrived = []
    data = b""
    other.setblocking(False)
    for number, message in enumerate(messages):
        if channel.send(frame(message)):
            taken.append(message)
        if number % 7 == 0:
            data += other.recv(100_000)
    assert 0 < len(taken) < len(messages)
    other.settimeout(HANG_S)

    def finish() -> None:
        drain(channel)
        channel.close()

    finisher = threading.Thread(target=finish)
    finisher.start()
    while chunk := other.recv(100_000):
        data += chunk
    finisher.join(HANG_S)
    while data:
        (length,) = LENGTH.unpack_from(data)
        arrived.append(data[LENGTH.size : LENGTH.size + length])
        data = data[LENGTH.size + length :]
    assert arrived == taken


def test_nothing_there_is_no_bytes_and_no_end(pair: Pair) -> None:
    channel, _ = pair
    assert channel.receive() == b""
    assert channel.is_open
    assert not channel.wait(0)
    assert not channel.wait(0.01)
    assert channel.is_open


def test_the_end_comes_after_what_was_sent_before_it(pair: Pair) -> None:
    channel, other = pair
    other.sendall(b"last words")
    other.close()
    assert channel.wait(HANG_S)
    assert channel.receive() == b"last words"
    assert channel.is_open
    assert channel.wait(HANG_S)
    assert channel.receive() == b""
    assert not channel.is_open
    assert not channel.send(b"hello?")
    assert channel.wait(None)


def test_what_was_sent_before_the_end_is_still_read_after_a_send_found_the_channel_broken() -> None:
    left, right = socket.socketpair()
    channel = Channel(left)
    right.sendall(b"last words")
    right.close()
    while channel.send(b"hello?"):
        pass
    assert not channel.is_open
    assert channel.receive() == b"last words"
    assert channel.receive() == b""
    channel.close()


def test_sending_to_a_peer_that_left_is_told_and_raises_nothing(pair: Pair) -> None:
    channel, other = pair
    clog(channel)
    other.close()
    deadline = time.monotonic() + HANG_S
    while channel.send(b"hello?") or channel.is_open:
        channel.wait(0.01)
        assert time.monotonic() < deadline
    assert not channel.send(b"hello?")


@pytest.mark.skipif(not hasattr(socket, "MSG_NOSIGNAL"), reason="the system cannot send without the signal")
def test_sending_raises_no_signal() -> None:
    """In a process that does not ignore SIGPIPE, as a program that embeds Python may not."""
    code = (
        "import signal, socket\n"
        "from forerun.wires.channel import Channel\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "left, right = socket.socketpair()\n"
        "channel = Channel(left)\n"
        "right.close()\n"
        "assert not channel.send(b'x') and not channel.is_open"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert finished.returncode == 0, (finished.returncode, finished.stderr)


def test_a_killed_peer_is_an_end_after_its_last_words() -> None:
    left, right = socket.socketpair()
    code = f"import socket, time; socket.socket(fileno={right.fileno()}).send(b'alive'); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", code], pass_fds=[right.fileno()]) as peer:
        right.close()
        channel = Channel(left)
        assert channel.wait(HANG_S)
        peer.kill()
        assert receive_until_closed(channel) == b"alive"
        assert peer.wait(HANG_S) == -signal.SIGKILL
    assert not channel.send(b"hello?")
    channel.close()


def test_wait_wakes_for_what_comes_and_for_the_end(pair: Pair) -> None:
    channel, other = pair
    for act in (lambda: other.sendall(b"x"), other.close):
        alarm = threading.Timer(0.05, act)
        alarm.start()
        assert channel.wait(None)
        alarm.join()
        assert channel.receive() == (b"" if act == other.close else b"x")
    assert not channel.is_open


def test_a_closed_channel_says_so_and_does_nothing(pair: Pair) -> None:
    channel, _ = pair
    channel.close()
    assert not channel.is_open
    assert channel.wait(None)
    assert not channel.send(b"x")
    assert channel.receive() == b""
    channel.flush()
    channel.close()
