"""How long the right target takes to reach a worker to which strangers connect all the time, idle ones and noisy ones.

python benchmarks/worker_strangers.py [--tries 20] [--interval-s 0.5] [--seconds 60]
"""

import argparse
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import monotonic, sleep

from forerun.core.errors import DrafterUnreachableError
from forerun.wires.endpoint import Address, connect, read_key

NOISE = (b"", b"GET / HTTP/1.1\r\n\r\n", b"", bytes(1000), b"", b"forerun\n\x01", b"", b"forerun\n\x01" + bytes(65))


def annoy(address: Address, interval_s: float, is_over: threading.Event) -> None:
    """One stranger after another, none of whom hangs up."""
    strangers = []
    while not is_over.wait(interval_s):
        sock = socket.create_connection((address.server, address.port), timeout=60)
        sock.sendall(NOISE[len(strangers) % len(NOISE)])
        strangers.append(sock)


def time_connect(address: Address, key: bytes) -> float | None:
    """Seconds until the worker let us in; None where it did not."""
    began = monotonic()
    try:
        connect(address, key, 5.0).close()
    except DrafterUnreachableError as error:
        print(error)
        return None
    return monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--interval-s", type=float, default=0.5)
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
        command = [sys.executable, "-m", "forerun", "worker", "--listen", "127.0.0.1:0", "--key-file", str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as worker:
            assert worker.stderr is not None
            found = re.search(r"(\S+:\d+)$", worker.stderr.readline().strip())
            assert found is not None, "the worker says where it listens"
            threading.Thread(target=worker.stderr.read, daemon=True).start()
            address, is_over = Address.parse(found[1]), threading.Event()
            crowd = threading.Thread(target=annoy, args=(address, arguments.interval_s, is_over))
            crowd.start()
            times = []
            for _ in range(arguments.tries):
                sleep(arguments.seconds / arguments.tries)
                times.append(time_connect(address, read_key(path)))
            is_over.set()
            crowd.join()
            worker.kill()
    let_in = sorted(seconds for seconds in times if seconds is not None)
    print(f"let in {len(let_in)} of {len(times)}; seconds: median {let_in[len(let_in) // 2]:.4f}, max {let_in[-1]:.4f}")


if __name__ == "__main__":
    main()
