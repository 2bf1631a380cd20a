"""The decode loop: the host between all steps of a round."""

import logging
from collections.abc import Generator, Iterable
from time import perf_counter
from typing import Protocol

from forerun.core.config import SamplingParams
from forerun.core.steps import StepStats
from forerun.core.timing import Span
from forerun.decoding.decoder import Decoder, Request, Round, Rounds
from forerun.decoding.prefill import prefill
from forerun.decoding.verifier import Verifier
from forerun.drafting.drafter import Drafter, DraftReport
from forerun.model.runner import Runner
from forerun.speculation.proposal import find_fault
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import walk

logger = logging.getLogger(__name__)


class Stretches(Protocol):
    """Plain rounds to be played among the drafted ones now and then; see engine/speedup."""

    @property
    def is_due(self) -> bool:
        """True where some are to be played now."""
        ...

    def pass_by(self, seconds: float) -> None:
        """A round took so long."""
        ...

    def play(self, target: Verifier, near_tie: float) -> Generator[Round, None, None]:
        """Pause the drafter, play them, and begin the request anew for it."""
        ...


class PlainTiming(Protocol):
    """Whoever wants plain rounds of drafted requests timed."""

    def stretches(self, drafter: Drafter, request: Request) -> Stretches | None:
        """Those of a request; None where there are to be none."""
        ...


class HostDecoder(Decoder):
    """Plays every request, with any drafter.

    Args:
        timing: None: all rounds are drafted.
    """

    def __init__(self, target: Runner, drafter: Drafter, timing: PlainTiming | None = None) -> None:
        self._target, self._drafter, self._timing = target, drafter, timing

    def can_play(self, params: SamplingParams) -> bool:
        return True

    def begin(self, request: Request) -> None:
        self._request = request  # before the prompt is read: a drafter in another process reads it at the same time
        self._drafter.begin(request.prompt_ids, request.params, request.noise)

    def rounds(self, num_tokens: int) -> Rounds:
        request = self._request
        yield from prefill(self._target, request.prompt_ids, self._drafter)
        verifier = Verifier(self._target, request.params, request.prompt_ids, request.noise)
        stretches = None if self._timing is None else self._timing.stretches(self._drafter, request)
        yield from decode(
            verifier, self._drafter, near_tie=request.near_tie, num_tokens=num_tokens, stretches=stretches
        )

    def end(self) -> None:
        self._drafter.end()


def checked(tree: TokenTree, target: Verifier, max_nodes: int) -> TokenTree:
    """The proposal, or the root alone where it is not one: a drafter can cost speed, never a token."""
    fault = find_fault(tree, root=target.root, max_nodes=max_nodes, vocab_size=target.vocab_size)
    if fault is None:
        return tree
    logger.warning("a proposal was dropped: %s", fault)
    return TokenTree(target.root)


def decode(
    target: Verifier, drafter: Drafter, *, near_tie: float, num_tokens: int, stretches: Stretches | None = None
) -> Generator[Round, None, None]:
    """Yield rounds until `num_tokens` tokens were emitted or the caller stops; the last round may emit more.

    Both sides have begun the request: all prompt tokens but the last are in the target's cache, and the last one is the
    first root.

    Args:
        near_tie: margins below this could be decided by rounding; they are counted.
        stretches: of plain rounds, which are timed; None: there are none.
    """
    try:
        num_emitted = 0
        while num_emitted < num_tokens:
            rounds: Iterable[Round]
            if stretches is not None and stretches.is_due:
                rounds = stretches.play(target, near_tie)
            else:
                rounds = (play_round(target, drafter, near_tie),)
            for done in rounds:
                num_emitted += len(done.token_ids)
                if stretches is not None:
                    stretches.pass_by(done.stats.draft_s + done.stats.verify_s)
                yield done
    finally:
        drafter.end()


def play_round(target: Verifier, drafter: Drafter, near_tie: float) -> Round:
    """Propose, verify, accept, commit."""
    began = perf_counter()
    tree = checked(drafter.propose(), target, drafter.verify_width)
    drafted = perf_counter()
    tree, choices = target.choose_safely(tree, drafter)
    acceptance = walk(tree, choices.token_ids)
    verified = perf_counter()
    report = drafter.accept(acceptance)  # before our own commit: another process may be waiting for it
    target.commit(tree, acceptance)
    margins = [choices.margins[node] for node in (0, *acceptance.path)]
    return Round(
        token_ids=acceptance.tokens,
        stats=StepStats(
            num_drafted=len(tree) - 1,
            num_verified=len(tree),
            num_accepted=len(acceptance.path),
            num_near_ties=sum([margin < near_tie for margin in margins]),
            draft_s=drafted - began,
            verify_s=verified - drafted,
            was_hit=report.was_hit,
            wait_s=report.wait_s,
            drafter=report.state,
            spans=spans_of_round(began, drafted, verified, report, num_accepted=len(acceptance.path)),
        ),
    )


def spans_of_round(
    began: float, drafted: float, verified: float, report: DraftReport, *, num_accepted: int
) -> tuple[Span, ...]:
    """Who worked when. A drafter that works elsewhere says so itself; here one was waited for, or drafted itself."""
    verify = Span("target", drafted, verified, f"+{num_accepted + 1}")
    if report.wait_s:
        return (*report.spans, Span("wait", began, drafted), verify)
    return (Span("draft", began, drafted), verify)
