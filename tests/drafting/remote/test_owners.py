"""A drafter in another process goes on from the texts of the same owner, and of nobody else."""

import torch

from forerun.drafting.policies import RemotePolicy, TreePolicy
from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import OWNER_BYTES, Begin, Setup
from forerun.drafting.remote.state_machines import DrafterEnd, TargetEnd
from forerun.engine.drafter_process import TREE_ROWS, grow_with
from forerun.model.runner import LEAST_ROWS, Runner
from forerun.wires.frames import FrameReader
from tests.drafting.remote.samples import GREEDY
from tests.tiny import CAPACITY, plain_spec, random_weights, tiny_runner

SPEC = plain_spec()
SETUP = Setup(
    target_vocab_size=SPEC.vocab_size, verify_width=4, draft_width=2, tree=TreePolicy(num_children=2),
    policy=RemotePolicy(),
)  # fmt: skip
TEXTS = [[(start + place) % SPEC.vocab_size for place in range(3 * LEAST_ROWS)] for start in (3, 11)]


def told(end: TargetEnd, text: list[int], owner: str) -> Begin:
    """How a request of this owner reaches the drafter."""
    end.owner = owner
    (message,) = FrameReader(KINDS).feed(b"".join(map(KINDS.to_frame, end.start_request(text, GREEDY, None))))
    assert isinstance(message, Begin)
    return message


def test_a_mark_says_whose_a_text_is_and_nothing_else() -> None:
    end = TargetEnd(SETUP)
    other = TargetEnd(SETUP)
    marks = [told(end, TEXTS[0], owner).owner for owner in ("", "ann", "bob", "\ud800", "ann")]
    assert marks[1] == marks[4]
    assert len(set(marks)) == 4
    assert all(len(mark) == OWNER_BYTES for mark in marks)
    assert told(other, TEXTS[0], "ann").owner != marks[1], "two engines share no texts"
    end.forget()
    assert told(end, TEXTS[0], "ann").owner != marks[1], "what was forgotten belongs to nobody"


class Process:
    """A drafter's process without the process."""

    def __init__(self) -> None:
        weights = random_weights(SPEC, torch.Generator().manual_seed(2))
        self.runner: Runner = tiny_runner(SPEC, weights, capacity=CAPACITY + TREE_ROWS, cache_bytes=2**24)
        grower = grow_with(self.runner, SETUP)
        self._end = DrafterEnd(grower, SETUP, make_noise=lambda _: None, clock=lambda: 0.0)

    def num_known(self, message: Begin) -> int:
        """How many tokens of the request's text are there when it begins; then the drafter reads it."""
        self._end.receive(message)
        num_known = len(self.runner.cached_ids)
        while not self._end.work():
            pass
        return num_known


def test_a_drafter_knows_the_texts_of_each_owner_until_they_are_forgotten() -> None:
    end = TargetEnd(SETUP)
    process = Process()
    num_prompt = len(TEXTS[0]) - 1
    whole = {("ann", 0): 0, ("ann", 1): 0, ("bob", 0): 0}
    assert {(owner, number): process.num_known(told(end, TEXTS[number], owner)) for owner, number in whole} == whole
    for owner, number in whole:
        known = process.num_known(told(end, TEXTS[number], owner))
        assert known >= num_prompt - LEAST_ROWS, (owner, number)
    end.forget()
    for owner, number in whole:
        assert process.num_known(told(end, TEXTS[number], owner)) == 0
