"""The decode loop on the host, which runs every step of a round: propose, verify, walk, accept, commit."""

import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from time import perf_counter
from typing import TypeAlias

from forerun.core.steps import DraftedTree, DrafterState, Guessers, Span, StepStats
from forerun.decoding.decoder import Decoder, Request, Round, Rounds
from forerun.decoding.drafters import Drafters
from forerun.decoding.prefill import prefill
from forerun.decoding.verifier import Verifier
from forerun.drafting.drafter import DraftReport
from forerun.model.runner import Runner
from forerun.speculation.referee.plain_times import COUNTED, PlainTimes, Stretch
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance, find_fault, walk

logger = logging.getLogger(__name__)

TimedRound: TypeAlias = tuple[Round, float]  # and its seconds


class PlainStretches:
    """Short runs of plain rounds among a request's drafted ones; the referee says when one is due.

    Args:
        times: the timed rounds.
        everywhere: does some work on all cores that plain decoding uses.
    """

    def __init__(
        self,
        times: PlainTimes,
        everywhere: Callable[[Callable[[], TimedRound]], TimedRound],
        drafters: Drafters,
        request: Request,
    ) -> None:
        self.times = times
        self._everywhere = everywhere
        self._drafters = drafters
        self._request = request

    def play(self, target: Verifier, near_tie: float) -> Generator[Round, None, None]:
        """Run one stretch while the drafters rest. Its tokens are part of the text."""
        began = perf_counter()
        stretch = Stretch(self.times)
        nobody = Drafters()
        self._drafters.end()
        nobody.start_text(replace(self._request, prompt_ids=(target.root,), prediction=(), constraint=None))
        while stretch.num_counted < COUNTED:
            done, seconds = self._everywhere(lambda: timed_round(target, nobody, near_tie))
            stretch.told(perf_counter(), seconds, len(target.token_ids))
            yield replace(done, stats=replace(done.stats, drafter=DrafterState.PAUSED))
        self._drafters.resume(target.token_ids)
        while self._drafters.prefill():
            pass
        self.times.spend(perf_counter() - began)


def timed_round(target: Verifier, drafters: Drafters, near_tie: float) -> TimedRound:
    """Run a round; returns it and its seconds."""
    began = perf_counter()
    done = play_round(target, drafters, near_tie)
    return done, perf_counter() - began


MakeStretches: TypeAlias = Callable[[Drafters, Request], PlainStretches | None]  # None: a request has none


class HostDecoder(Decoder):
    """Plays every request, with any drafters.

    Args:
        make_stretches: creates the plain rounds to time within a request; None: all rounds are drafted.
    """

    def __init__(self, target: Runner, drafters: Drafters, make_stretches: MakeStretches | None = None) -> None:
        self._target = target
        self._drafters = drafters
        self._make_stretches = make_stretches

    def can_play(self, request: Request) -> bool:
        return True

    def start(self, request: Request) -> None:
        self._request = request  # before reading the prompt, so that a drafter in another process reads it in parallel
        self._drafters.start_text(request, self._target.drop_rows)

    def rounds(self, num_tokens: int) -> Rounds:
        request = self._request
        yield from prefill(self._target, request, self._drafters)
        verifier = Verifier(
            self._target, request.params, request.own_prompt_ids, request.noise, request.written_ids, request.constraint
        )
        stretches = None if self._make_stretches is None else self._make_stretches(self._drafters, request)
        yield from decode(
            verifier, self._drafters, near_tie=request.near_tie, num_tokens=num_tokens, stretches=stretches
        )

    def end(self) -> None:
        self._drafters.end()


def checked(tree: TokenTree, target: Verifier, max_nodes: int) -> TokenTree:
    """The proposal, or only the root if it is malformed: a faulty drafter costs speed but never changes a token."""
    fault = find_fault(tree, root=target.root, max_nodes=max_nodes, vocab_size=target.vocab_size)
    if fault is None:
        return tree
    logger.warning("a proposal was dropped: %s", fault)
    return TokenTree(target.root)


def decode(
    target: Verifier, drafters: Drafters, *, near_tie: float, num_tokens: int, stretches: PlainStretches | None = None
) -> Generator[Round, None, None]:
    """Yield rounds until `num_tokens` tokens were emitted or the caller stops; the last round may emit more.

    Before the call, target and drafters have begun the request: all prompt tokens but the last are in the target's
    cache, and the last one is the first root.

    Args:
        near_tie: choices with a smaller margin count as near-ties, which rounding could decide.
        stretches: plain rounds to time; None: there are none.
    """
    try:
        num_emitted = 0
        while num_emitted < num_tokens:
            rounds: Iterable[Round]
            if stretches is not None and drafters.referee.is_stretch_due:
                rounds = stretches.play(target, near_tie)
            else:
                rounds = (play_round(target, drafters, near_tie),)
            for done in rounds:
                num_emitted += len(done.token_ids)
                if stretches is not None:
                    stretches.times.pass_by(done.stats.draft_s + done.stats.verify_s)
                yield done
    finally:
        drafters.end()


def play_round(target: Verifier, drafters: Drafters, near_tie: float) -> Round:
    """Propose, verify, accept, commit."""
    began = perf_counter()
    tree = checked(drafters.propose(), target, drafters.verify_width)
    if len(nodes := target.allowed(tree)) < len(tree):
        tree = tree.select(nodes)
    drafted = perf_counter()
    tree, choices = target.choose_safely(tree, drafters)
    acceptance = walk(tree, choices.token_ids)
    verified = perf_counter()
    report = drafters.told(acceptance)  # before our own commit, as a drafter in another process may be waiting for it
    target.commit(tree, acceptance)
    margins = [choices.margins[node] for node in (0, *acceptance.path)]
    return Round(
        token_ids=acceptance.tokens,
        logprobs=target.logprobs(acceptance),
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
            drafted_by=report.drafted_by,
            skips=drafters.skip_report,
            spans=spans_of_round(began, drafted, verified, report, num_accepted=len(acceptance.path)),
            tree=drafted_tree(tree, acceptance, report.guessers),
        ),
    )


def drafted_tree(tree: TokenTree, acceptance: Acceptance, guessers: Guessers) -> DraftedTree | None:
    """The tree and its accepted path, for display; None for a root alone."""
    if len(tree) == 1:
        return None
    return DraftedTree(
        token_ids=tuple(tree.token_ids),
        parents=tuple(tree.parents),
        path=acceptance.path,
        chain=tuple(tree.chain),
        guessers=guessers,
    )


def spans_of_round(
    began: float, drafted: float, verified: float, report: DraftReport, *, num_accepted: int
) -> tuple[Span, ...]:
    """Busy times of target and drafter. A remote drafter reports its own; of a local one the proposal is timed here."""
    verify = Span("target", drafted, verified, f"+{num_accepted + 1}")
    if report.wait_s:
        return (*report.spans, Span("wait", began, drafted), verify)
    return (Span("draft", began, drafted), verify)
