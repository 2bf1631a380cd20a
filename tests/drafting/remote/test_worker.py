"""What a drafter's process says when it fails."""

import socket

import pytest

from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import Failure, Hello, Setup
from forerun.drafting.remote.state_machines import Grower
from forerun.drafting.remote.worker import LoadedDraft, serve
from forerun.sampling.noise import KeyedNoise
from forerun.wires.channel import Channel
from forerun.wires.frames import FrameReader
from tests.drafting.remote.samples import HELLO, SETUP


def no_grower(setup: Setup) -> Grower:
    raise MemoryError("no room for the tree")


def test_a_worker_that_fails_tells_the_target_why_before_it_ends() -> None:
    theirs, ours = socket.socketpair()
    target = Channel(theirs)
    worker = Channel(ours)
    target.send(KINDS.to_frame(SETUP))
    with pytest.raises(MemoryError):
        serve(worker, LoadedDraft(hello=HELLO, grower=no_grower, noise=KeyedNoise))
    worker.close()
    hello, failure = FrameReader(KINDS).feed(target.receive())
    assert isinstance(hello, Hello)
    assert isinstance(failure, Failure)
    assert "MemoryError: no room for the tree" in failure.text
    assert "no_grower" in failure.text, "with its traceback"
    target.close()
