"""Each end takes what is news to it and ignores the rest, however often and in whatever order it comes."""

from collections.abc import Sequence
from typing import Final

import pytest
from msgspec.structs import replace

from forerun.core.config import SamplingParams
from forerun.drafting.policies import RemotePolicy, TreePolicy
from forerun.drafting.remote.messages import Begin, Message, Proposal, Setup, Stop, Verdict
from forerun.drafting.remote.state_machines import DrafterEnd, TargetEnd
from forerun.speculation.tree import TokenTree
from tests.drafting.remote.fake import FakeGrower, Language

GREEDY: Final = SamplingParams()
SETUP: Final = Setup(
    target_vocab_size=9, verify_width=4, draft_width=2, tree=TreePolicy(num_children=3, looks_up=False),
    policy=RemotePolicy(max_repairs=1, max_lateness=1.0, calibrates=False, sends_ahead=False),
)  # fmt: skip
LANGUAGE: Final = Language(1, vocab_size=9, skill=1.0, num_guesses=2)
TEXT: Final = LANGUAGE.text([1, 2, 3], 20)
BEGIN: Final = Begin(request=2, prompt_ids=tuple(TEXT[:3]), params=GREEDY, seed=None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def grower() -> FakeGrower:
    return FakeGrower(LANGUAGE, horizon=16, draft_width=2)


@pytest.fixture
def drafter(grower: FakeGrower) -> DrafterEnd:
    """One that has begun request 2."""
    end = DrafterEnd(grower, SETUP, make_noise=lambda _: None, clock=Clock())
    end.receive(BEGIN)
    return end


def verdict(base_len: int, length: int, request: int = 2) -> Verdict:
    """The text is `length` tokens long, the first `base_len` of which are known."""
    return Verdict(request=request, base_len=base_len, token_ids=tuple(TEXT[base_len:length]), step_s=0.01)


def answer(drafter: DrafterEnd) -> Proposal:
    """What the drafter sends next."""
    for _ in range(10):
        proposals = drafter.work() if drafter.idle_s() == 0 else []
        if proposals:
            return proposals[0]
    raise AssertionError("no answer")


def test_a_verdict_said_twice_is_taken_once(drafter: DrafterEnd, grower: FakeGrower) -> None:
    for _ in range(2):
        drafter.receive(verdict(3, 5))
        assert grower.text == TEXT[:5]
    assert answer(drafter).base_len == 5


def test_of_a_verdict_what_is_known_is_left_out(drafter: DrafterEnd, grower: FakeGrower) -> None:
    for length in (4, 7, 5, 8):
        drafter.receive(verdict(3, length))
    assert grower.text == TEXT[:8]
    assert answer(drafter).token_ids[0] == TEXT[7]


def test_a_verdict_beyond_a_gap_waits_for_one_that_closes_it(drafter: DrafterEnd, grower: FakeGrower) -> None:
    drafter.receive(verdict(5, 6))
    assert grower.text == TEXT[:3]
    drafter.receive(verdict(3, 7))
    assert grower.text == TEXT[:7]


def test_a_drafter_ignores_what_belongs_to_another_request(drafter: DrafterEnd, grower: FakeGrower) -> None:
    others: list[Message] = [
        verdict(3, 5, request=1), verdict(3, 5, request=3), Stop(request=1), Stop(request=3),
        replace(BEGIN, request=1, prompt_ids=(8, 8)), replace(BEGIN, prompt_ids=(8, 8)),
    ]  # fmt: skip
    for message in others:
        drafter.receive(message)
        assert (grower.text, drafter.request, drafter.is_active) == (TEXT[:3], 2, True)


def chain(token_ids: Sequence[int], log_prob: float) -> TokenTree:
    tree = TokenTree(token_ids[0])
    for token_id in token_ids[1:]:
        tree.add(len(tree) - 1, token_id, tree.log_probs[-1] + log_prob)
    return tree


@pytest.fixture
def target() -> TargetEnd:
    """One at request 2, five tokens into the text."""
    end = TargetEnd(SETUP)
    end.start_request([7, 7, 7], GREEDY, None)
    end.start_request(TEXT[:3], GREEDY, None)
    end.commit(TEXT[3:5], 0.01)
    return end


def proposal(base_len: int, *token_ids: int, serial: int = 1, request: int = 2) -> Proposal:
    """A chain below the first `base_len` tokens of the text."""
    num_nodes = 1 + len(token_ids)
    return Proposal(
        request=request, base_len=base_len, serial=serial, repair_s=0.0, token_ids=(TEXT[base_len - 1], *token_ids),
        parents=(0, *range(num_nodes - 1)), log_probs=tuple(-0.5 * node for node in range(num_nodes)),
    )  # fmt: skip


def tokens_of(target: TargetEnd) -> list[int] | None:
    tree = target.tree()
    return None if tree is None else tree.token_ids


def test_a_tree_for_an_earlier_text_is_taken_below_what_was_committed_since(target: TargetEnd) -> None:
    target.receive(proposal(3, TEXT[3], TEXT[4], 8, 6))
    assert not target.is_fresh
    assert tokens_of(target) == [TEXT[4], 8, 6]
    target.commit([8], 0.01)
    assert tokens_of(target) == [8, 6]
    target.commit([2], 0.01)
    assert tokens_of(target) is None


def test_a_target_ignores_trees_that_cannot_be_for_its_text(target: TargetEnd) -> None:
    target.receive(proposal(4, TEXT[4]))
    others = {
        "an earlier request's": proposal(5, 1, request=1),
        "a later request's": proposal(5, 1, request=3),
        "one beyond the text": proposal(6, 1),
        "one of the prompt": proposal(2, 1),
        "one before what is confirmed": proposal(3, 1),
        "one with another root": replace(proposal(5, 1), token_ids=((TEXT[4] + 1) % 9, 1)),
    }
    for name, other in others.items():
        target.receive(replace(other, serial=9))
        assert (tokens_of(target), target.confirmed_len) == ([TEXT[4]], 4), name


def test_a_verdict_repeats_what_was_not_confirmed(target: TargetEnd) -> None:
    assert target.commit([TEXT[5]], 0.02) == [replace(verdict(3, 6), step_s=0.02)]
    target.receive(proposal(5, 1))
    assert target.commit([TEXT[6]], 0.02) == [replace(verdict(5, 7), step_s=0.02)]


def test_a_new_drafter_is_told_everything_since_the_prompt(target: TargetEnd) -> None:
    target.receive(proposal(5, 1))
    setup, begin, told = target.resume()
    assert (setup, told) == (SETUP, verdict(3, 5))
    assert isinstance(begin, Begin)
    assert replace(begin, owner=BEGIN.owner) == BEGIN
    assert (target.tree(), target.confirmed_len) == (None, 3)
