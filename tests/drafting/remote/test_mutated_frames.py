"""Frames that were tampered with cost speed and never a token, an exception or the frame after them."""

import logging
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, get_args

import pytest

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel
from forerun.decoding.host_loop import checked
from forerun.drafting.policies import RemotePolicy, TreePolicy
from forerun.drafting.remote.drafter import ParallelDrafter
from forerun.drafting.remote.frames import KINDS
from forerun.drafting.remote.messages import Beat, Begin, Failure, Hello, Message, Proposal, Setup, Spans, Stop, Verdict
from forerun.drafting.remote.state_machines import DrafterEnd, TargetEnd
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, walk
from forerun.wires.frames import FrameReader
from tests.drafting.remote.fake import FakeGrower, Language
from tests.drafting.remote.mutants import LONGEST_LIE, NOISE, REQUEST, Material, random_mutant
from tests.marks import rest_soak
from tests.tiny import own_outcome, proposal_of

NUM_DEFAULT_CHUNKS = 1
NUM_CHUNKS = 500
SESSIONS_PER_CHUNK = 200
MUTANTS_PER_SESSION = 100
NUM_HOSTILE_DRAFTERS = 150
GREEDY: Final = SamplingParams()
PADDING: Final = bytes(LONGEST_LIE + 1024)  # all that a reader was told to wait for
HELLO: Final = Hello(pid=7, vocab_size=12, max_length=99, vocabulary=bytes(range(32)))
NOISES: Final = {mutate.__name__ for mutate in NOISE}


@dataclass(slots=True)
class Side:
    """What `decoding.host_loop.checked` wants to know of a target."""

    root: int
    vocab_size: int


class Session:
    """Both ends in the middle of a request, and what crossed between them."""

    def __init__(self, number: int) -> None:
        self.rng = rng = random.Random(number)
        self.language = Language(number, vocab_size=rng.randint(3, 12), skill=0.8, num_guesses=3)
        self.setup = Setup(
            target_vocab_size=self.language.vocab_size, verify_width=rng.randint(1, 6), draft_width=2,
            tree=TreePolicy(num_children=3, looks_up=False),
            policy=RemotePolicy(
                max_repairs=1, max_lateness=1.0, calibrates=False, sends_ahead=rng.random() < 0.5
            ),
        )  # fmt: skip
        self.now = 0.0
        self.text = [rng.randrange(self.language.vocab_size) for _ in range(rng.randint(1, 5))]
        self.prompt_len = len(self.text)
        self.target = TargetEnd(self.setup)
        self.drafter = self.drafter_for(self.setup)
        for _ in range(REQUEST - 1):
            self.target.start_request([0], GREEDY, None)
        params = SamplingParams(temperature=1.0, top_k=5, logit_bias={1: -2.0, 2: 0.5})
        begin = self.target.start_request(self.text, params, seed=7)
        self.fixed = [KINDS.to_frame(message) for message in (*self.bystanders(), *begin)]
        self.recent: list[bytes] = []
        messages: list[Message] = [*begin]
        for _ in range(3):
            messages = self.exchange(messages)

    def bystanders(self) -> list[Message]:
        """One message of every kind that the exchange does not bring forth."""
        return [
            HELLO,
            self.setup,
            Stop(request=REQUEST),
            Beat(request=REQUEST),
            Spans(request=REQUEST, times=((0.5, 0.75), (0.75, 1.5))),
            Failure(text="äh"),
        ]

    def drafter_for(self, setup: Setup) -> DrafterEnd:
        grower = FakeGrower(
            self.language, horizon=min(12, setup.verify_width * 2), draft_width=setup.draft_width, is_strict=False
        )
        return DrafterEnd(grower, setup, make_noise=lambda _: None, clock=self.clock)

    def judge(self, _: Hello) -> str | None:
        return self.rng.choice((None, None, "not wanted"))

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def exchange(self, messages: list[Message]) -> list[Message]:
        """One honest round; return what the target says."""
        del self.recent[:-3]  # what is mutated is fresh
        for message in messages:
            self.drafter.receive(message)
        for proposal in self.drafted():
            self.sample = proposal
            self.recent.append(KINDS.to_frame(proposal))
            self.target.receive(proposal)
        verdict = self.commit()
        self.recent.append(KINDS.to_frame(verdict))
        return [verdict]

    def drafted(self) -> list[Proposal]:
        """What the drafter's end has to say after two pieces of work."""
        return [proposal for _ in range(2) if self.drafter.idle_s() == 0 for proposal in self.drafter.work()]

    def replace_drafter(self) -> None:
        """An honest drafter takes the place of one that may have been misled."""
        self.drafter = self.drafter_for(self.setup)
        self.exchange(self.target.resume()[1:])

    def verify(self, tree: TokenTree) -> Acceptance:
        """The text grows by what the target says and nothing else."""
        side = Side(root=self.text[-1], vocab_size=self.language.vocab_size)
        tree = checked(tree, side, self.setup.verify_width)
        acceptance = walk(tree, self.language.choices(self.text, tree))
        self.text.extend(acceptance.tokens)
        return acceptance

    def commit(self) -> Verdict:
        """Verify what the target's end has."""
        tree = self.target.tree() or TokenTree(self.text[-1])
        tokens = self.verify(tree.select(tree.best(self.setup.verify_width))).tokens
        (verdict,) = self.target.commit(tokens, step_s=0.01)
        assert isinstance(verdict, Verdict)
        assert self.prompt_len <= verdict.base_len <= len(self.text) - len(tokens), "the confirmed was said before"
        assert list(verdict.token_ids) == self.text[verdict.base_len :], "the target's end knows the text"
        return verdict

    def take(self, message: Message) -> None:
        """Give a message to whoever it is for."""
        match message:
            case Proposal():
                self.target.receive(message)
                if self.rng.random() < 0.2:
                    self.commit()
                else:
                    self.target.tree()
            case Setup():
                self.drafter = self.drafter_for(message)
            case Begin() | Verdict() | Stop():
                self.drafter.receive(message)
                for proposal in self.drafted():
                    KINDS.to_frame(proposal)
            case _:
                pass

    def material(self) -> Material:
        return Material(
            frames=self.fixed + self.recent, sample=self.sample, text=self.text, confirmed_len=self.target.confirmed_len
        )

    def try_mutant(self, totals: Counter[str]) -> None:
        """Send one mutant and an honest frame, which must arrive whatever the mutant is."""
        name, mutant = random_mutant(self.rng, self.material())
        marker = Beat(request=self.rng.randrange(1 << 32))
        reader = FrameReader(KINDS)
        messages = reader.feed(mutant + KINDS.to_frame(marker))
        if not messages or messages[-1] != marker:
            messages += reader.feed(PADDING)
            assert messages, f"{name} swallows the next frame: {mutant.hex()}"
            assert messages[-1] == marker, f"{name} swallows the next frame: {mutant.hex()}"
            totals["waited for"] += 1
        for message in messages[:-1]:
            if name not in NOISES:
                totals[type(message).__name__] += 1
            self.take(message)
        totals["mutants"] += 1

    def assert_text_is_the_targets(self) -> None:
        prompt = self.text[: self.prompt_len]
        num_tokens = len(self.text) - self.prompt_len
        assert self.text == self.language.text(prompt, num_tokens)


def play(number: int, totals: Counter[str]) -> None:
    session = Session(number)
    for place in range(MUTANTS_PER_SESSION):
        session.try_mutant(totals)
        if place % 10 == 0:
            session.replace_drafter()
    session.commit()
    session.assert_text_is_the_targets()


def check_chunk(chunk: int) -> None:
    totals: Counter[str] = Counter()
    for number in range(chunk * SESSIONS_PER_CHUNK, (chunk + 1) * SESSIONS_PER_CHUNK):
        play(number, totals)
    seen = {"waited for", *(kind.__name__ for kind in get_args(Message))}
    assert seen - set(+totals) == set(), f"what never came through was not tested: {totals}"


@pytest.fixture(autouse=True)
def _in_silence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="forerun")  # every fault would be a line


@pytest.mark.parametrize("chunk", rest_soak(range(NUM_CHUNKS), NUM_DEFAULT_CHUNKS))
def test_a_frame_that_was_tampered_with_changes_no_text(chunk: int) -> None:
    check_chunk(chunk)


class HostileWire:
    """Brings mutants after a hello, and is its own supply."""

    trouble = ""
    is_open = True

    def __init__(self, session: Session) -> None:
        self._session = session
        self._greeting = KINDS.to_frame(HELLO)

    def receive(self) -> bytes:
        rng = self._session.rng
        text = self._session.text
        material = replace(self._session.material(), confirmed_len=len(text) - 2)
        data = self._greeting + b"".join(random_mutant(rng, material)[1] for _ in range(rng.randint(0, 9)))
        self._greeting = b""
        return data

    def wait(self, timeout_s: float | None) -> bool:
        self._session.now += self._session.rng.random() * (timeout_s or 0.0)
        return True

    def take(self) -> "HostileWire":
        return HostileWire(self._session)

    def send(self, data: bytes) -> bool:
        return True

    def is_starved(self) -> bool:
        return False

    def replace(self) -> None: ...

    def mark_healthy(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize("looks_up", [False, True])
def test_a_hostile_drafter_changes_no_text(looks_up: bool) -> None:
    num_drafted = 0
    for number in range(NUM_HOSTILE_DRAFTERS):
        session = Session(number)
        draft = DraftModel(verify_width=session.setup.verify_width)
        policy = RemotePolicy(looks_up=looks_up)
        vocab_size = session.language.vocab_size
        drafter = ParallelDrafter(
            HostileWire(session), draft, policy, target_vocab_size=vocab_size, check=session.judge, clock=session.clock
        )
        for _ in range(REQUEST):
            drafter.end()
            drafter.begin(session.text, GREEDY, None)
        for _ in range(20):
            tree = proposal_of(drafter)
            num_drafted += len(tree) - 1
            drafter.told(own_outcome(session.verify(tree)))
        session.assert_text_is_the_targets()
    assert num_drafted > NUM_HOSTILE_DRAFTERS
