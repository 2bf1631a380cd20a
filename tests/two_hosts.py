"""Two hosts on one machine: two network namespaces, and a link between them with a delay.

`tc netem` is not in every kernel, so a process of its own carries the packets: it holds both ends, two TUN devices, and
passes each packet on once its time has come.
"""

import ctypes
import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

TUNSETIFF: Final = 0x400454CA  # <linux/if_tun.h>
IFF_TUN: Final = 0x0001
IFF_NO_PI: Final = 0x1000  # packets without a header of the device's
CLONE_NEWNET: Final = 0x40000000
ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")  # of no network but the two namespaces'


@dataclass(frozen=True, kw_only=True)
class Host:
    """A network namespace."""

    name: str
    address: str

    @contextmanager
    def entered(self) -> Iterator[None]:
        """The calling thread, and what it starts, has the network of this host."""
        with Path("/proc/thread-self/ns/net").open() as own, Path(f"/run/netns/{self.name}").open() as other:
            enter(other.fileno())
            try:
                yield
            finally:
                enter(own.fileno())


@dataclass(frozen=True, kw_only=True)
class TwoHosts:
    """Both, and the process that is the link between them."""

    hosts: tuple[Host, Host]
    link: "subprocess.Popen[bytes]"


def fault() -> str | None:
    """Why there can be no two hosts here; None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and its superuser"
    if shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        return "there is no ip command, or no /dev/net/tun"
    probe = f"forerun{os.getpid()}probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        return "network namespaces are not permitted here"
    run("ip", "netns", "del", probe)
    return None


@contextmanager
def two_hosts(delay_s: float) -> Iterator[TwoHosts]:
    """Two hosts whose packets take so long each way."""
    with ExitStack() as undo:
        hosts, ends = [], []
        for number, address in enumerate(ADDRESSES):
            name = f"forerun{os.getpid()}h{number}"
            run("ip", "netns", "add", name)
            undo.callback(run, "ip", "netns", "del", name)
            ends.append(make_end(f"fr{os.getpid()}h{number}", name, f"{address}/24"))
            undo.callback(os.close, ends[-1])
            hosts.append(Host(name=name, address=address))
        command = [sys.executable, __file__, str(delay_s), *map(str, ends)]
        link = undo.enter_context(subprocess.Popen(command, pass_fds=ends))
        undo.callback(link.kill)
        yield TwoHosts(hosts=(hosts[0], hosts[1]), link=link)


def make_end(device: str, namespace: str, address: str) -> int:
    """The descriptor through which a namespace's packets come and go."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    run("ip", "link", "set", device, "netns", namespace)
    run("ip", "-n", namespace, "addr", "add", address, "dev", device)
    for name in (device, "lo"):
        run("ip", "-n", namespace, "link", "set", name, "up")
    return end


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")


def carry(delay_s: float, ends: Sequence[int]) -> None:
    """Pass on every packet between the two after the delay, until killed."""
    other = dict(zip(ends, reversed(ends), strict=True))
    waiting: deque[tuple[float, int, bytes]] = deque()  # in the order of their times, as all take as long
    while True:
        left = max(0.0, waiting[0][0] - monotonic()) if waiting else None
        ready, _, _ = select.select(ends, (), (), left)  # its times, unlike poll's, are no whole milliseconds
        for end in ready:
            with suppress(BlockingIOError):
                while packet := os.read(end, 1 << 16):
                    waiting.append((monotonic() + delay_s, other[end], packet))
        while waiting and waiting[0][0] <= monotonic():
            _, end, packet = waiting.popleft()
            with suppress(OSError):  # no room, or no such device any more: packets may be lost
                os.write(end, packet)


if __name__ == "__main__":
    carry(float(sys.argv[1]), tuple(map(int, sys.argv[2:])))
