"""The signals that end a program, in processes of their own."""

import signal
import subprocess
import sys

import pytest

from forerun.core.interrupts import ENDING, ended_by

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PROGRAM = """
import ctypes, os, signal, subprocess, sys, threading, time
from forerun.core.interrupts import ended_by, keep_handlers
signal.signal(int(sys.argv[1]), signal.SIG_DFL)  # nohup has SIGHUP ignored
keep_handlers()
got = threading.Event()
with ended_by(lambda number, frame: got.set()):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    ctypes.CDLL(None).signal(int(sys.argv[1]), None)  # as a library does: the default, which ends the process
    os.kill(os.getpid(), int(sys.argv[1]))
    while not got.is_set():
        time.sleep(0.01)
command = ["grep", "SigBlk", "/proc/self/status"]
blocked = int(subprocess.run(command, preexec_fn=lambda: None, capture_output=True).stdout.split()[1], 16)
print([signal.Signals(number).name for number in range(1, 32) if blocked >> number - 1 & 1])
"""


@pytest.mark.parametrize("number", ENDING)
def test_our_handler_runs_whatever_a_library_sets_and_children_can_be_ended(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PROGRAM, str(int(number))]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert (finished.returncode, finished.stdout) == (0, "['SIGHUP', 'SIGINT']\n"), finished.stderr


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by(print):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is print
        assert signal.getsignal(signal.SIGTERM) is not print
    finally:
        signal.signal(signal.SIGHUP, before)
