"""The decode loop on the host, which runs every step of a round: propose, verify, walk, accept, commit."""

import logging
from collections.abc import Generator, Iterable, Sequence
from time import perf_counter
from typing import Protocol

from torch import Tensor

from forerun.core.config import SamplingParams
from forerun.core.errors import NumericalError
from forerun.core.pace import Pace
from forerun.core.steps import DraftedTree, Guessers, StepStats, TokenLogprob
from forerun.core.timing import Span
from forerun.decoding.decoder import Decoder, Request, Round, Rounds, prefill
from forerun.drafting.drafter import Drafter, DraftReport
from forerun.drafting.predicted import PredictedDrafter
from forerun.model.inputs import ForwardInput, TokenChoice
from forerun.model.outputs import ForwardOutput
from forerun.model.runner import Runner
from forerun.sampling.logprobs import token_logprobs
from forerun.sampling.noise import MASK_64, KeyedNoise
from forerun.sampling.sample import Choices, LogitShaper, widened
from forerun.speculation.tree import TokenTree, ancestry_matrix
from forerun.speculation.walk import Acceptance, find_fault, walk

logger = logging.getLogger(__name__)


class Verifier:
    """Runs the target on trees and chooses a token after each node.

    The chosen token depends only on the text before it, the parameters and the seed; see `sampling.sample`.

    Args:
        written_ids: tokens of the answer that another decoder wrote.
    """

    def __init__(
        self,
        runner: Runner,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        noise: KeyedNoise | None,
        written_ids: Sequence[int] = (),
    ) -> None:
        self._runner, self._noise = runner, noise
        self._shaper = LogitShaper(
            params, runner.spec.vocab_size, prompt_ids, device=runner.device, truncate=runner.backend.truncate
        )
        self._shaper.commit(written_ids)
        self.vocab_size, self.root = runner.spec.vocab_size, (written_ids or prompt_ids)[-1]
        self._num_top, self._choice = params.logprobs, None
        if self._shaper.is_plain and self._num_top is None:
            seed = None if noise is None else noise.seed & MASK_64
            self._choice = TokenChoice(seed=seed, temperature=self._shaper.temperature_left)
        self._logits: Tensor  # [N, V] of the last tree, only if log-probabilities are requested

    @property
    def token_ids(self) -> list[int]:
        """The text so far, the root last."""
        return [*self._runner.cached_ids, self.root]

    def choose(self, tree: TokenTree, drafter: Drafter | None = None, *, is_repeated: bool = False) -> Choices:
        """Run one pass over the tree, one row per node, and over the drafter's rows; choose a token after each node.

        Args:
            is_repeated: the pass repeats one that failed, so the full logits are needed to find the cause.
        """
        needs_logits = is_repeated or (drafter is not None and (drafter.adds_rows or drafter.num_successors > 0))
        cache = self._runner.cache
        prefix_len = cache.committed_len
        positions = [prefix_len + depth for depth in tree.depths]
        inputs = ForwardInput(
            token_ids=tree.token_ids,
            positions=positions,
            first_slot=cache.end,
            prefix_len=prefix_len,
            ancestry=ancestry_matrix(tree.parents) if len(tree) > 1 else None,
            num_logit_rows=len(tree),
            choice=None if needs_logits else self._choice,
        )
        output = self._run(inputs, drafter)
        if output.best is not None:
            return Choices.of(output.best)
        logits = output.logits
        if self._num_top is not None:
            self._logits = logits
        paths = [tree.path_tokens(node) for node in range(len(tree))] if self._shaper.needs_paths else None
        scores = self._shaper.shape(logits, paths)
        noise = self._noise.at([place + 1 for place in positions]) if self._noise else None
        try:
            choices = self._runner.backend.sample(scores, noise, temperature=self._shaper.temperature_left)
        except NumericalError:
            if fault := self._shaper.fault_of_settings(logits):
                raise NumericalError(fault) from None
            raise
        if drafter is not None and drafter.num_successors:
            drafter.observe_successors(tree, self._runner.backend.topk(widened(logits), None, drafter.num_successors))
        return choices

    def _run(self, inputs: ForwardInput, drafter: Drafter | None) -> ForwardOutput:
        """The output of these rows; the logits of rows that the drafter added go only to the drafter."""
        extended = drafter.extend(inputs) if drafter is not None and drafter.adds_rows else inputs
        output, num_rows = self._runner.forward(extended), len(inputs.token_ids)
        if drafter is None or extended is inputs:
            return output
        drafter.observe(output.logits[num_rows:])
        return ForwardOutput(logits=output.logits[:num_rows])

    def choose_safely(self, tree: TokenTree, drafter: Drafter | None = None) -> tuple[TokenTree, Choices]:
        """The verified tree and its choices.

        If drafted nodes, or rows that the drafter added, make the target overflow, the root is run alone, as in plain
        decoding, so that they cannot end the request. If that fails too, the cause may be in the cache or in the
        owner's saved texts, and these are dropped.
        """
        try:
            return tree, self.choose(tree, drafter)
        except NumericalError:
            self._runner.drop_rows()
        alone = TokenTree(tree.token_ids[0])
        try:
            return alone, self.choose(alone, is_repeated=True)
        except NumericalError:
            self._runner.forget(self._runner.owner)
            raise

    def logprobs(self, acceptance: Acceptance) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the last round's tokens, if requested. The next pass may overwrite the logits."""
        if self._num_top is None:
            return ()
        return token_logprobs(self._logits, [0, *acceptance.path], acceptance.tokens, self._num_top)

    def commit(self, tree: TokenTree, acceptance: Acceptance) -> None:
        """Commit the rows of the root and of the accepted path."""
        self._runner.commit([0, *acceptance.path], (tree.token_ids[0], *acceptance.tokens[:-1]))
        self._shaper.commit(acceptance.tokens)
        self.root = acceptance.bonus_token


class Stretches(Protocol):
    """Stretches of plain rounds between drafted ones; see engine/speedup."""

    @property
    def is_due(self) -> bool:
        """True if a stretch is due."""
        ...

    def pass_by(self, seconds: float) -> None:
        """Record a round's time."""
        ...

    def play(self, target: Verifier, near_tie: float) -> Generator[Round, None, None]:
        """Pause the drafter, play a stretch, and restart the drafter on the request."""
        ...


class PlainTiming(Protocol):
    """Creates the stretches of plain rounds that are timed within drafted requests."""

    def stretches(self, drafter: Drafter, request: Request) -> Stretches | None:
        """The stretches of a request, or None."""
        ...


class HostDecoder(Decoder):
    """Plays every request, with any drafter.

    Args:
        timing: creates stretches of plain rounds to time; None: all rounds are drafted.
        pace: the target's pass times, used to choose how much of a prediction to verify; None: as much as fits.
    """

    def __init__(
        self, target: Runner, drafter: Drafter, timing: PlainTiming | None = None, pace: Pace | None = None
    ) -> None:
        self._target, self._drafter, self._timing = target, drafter, timing
        self._predicted = PredictedDrafter(drafter, pace)
        self._playing = drafter

    def can_play(self, request: Request) -> bool:
        return True

    def begin(self, request: Request) -> None:
        self._request = request  # before reading the prompt, so that a drafter in another process reads it meanwhile
        self._playing = self._drafter
        if request.prediction and self._drafter.verify_width > 1:
            self._predicted.expect(request.prediction)
            self._playing = self._predicted
        self._drafter.change_owner(request.owner)
        self._playing.begin(request.prompt_ids, request.params, request.noise)

    def rounds(self, num_tokens: int) -> Rounds:
        request = self._request
        yield from prefill(self._target, request, self._playing)
        verifier = Verifier(self._target, request.params, request.own_prompt_ids, request.noise, request.written_ids)
        stretches = None if self._timing is None else self._timing.stretches(self._playing, request)
        yield from decode(
            verifier, self._playing, near_tie=request.near_tie, num_tokens=num_tokens, stretches=stretches
        )

    def end(self) -> None:
        self._playing.end()


def checked(tree: TokenTree, target: Verifier, max_nodes: int) -> TokenTree:
    """The proposal, or only the root if it is malformed: a faulty drafter costs speed but never changes a token."""
    fault = find_fault(tree, root=target.root, max_nodes=max_nodes, vocab_size=target.vocab_size)
    if fault is None:
        return tree
    logger.warning("a proposal was dropped: %s", fault)
    return TokenTree(target.root)


def decode(
    target: Verifier, drafter: Drafter, *, near_tie: float, num_tokens: int, stretches: Stretches | None = None
) -> Generator[Round, None, None]:
    """Yield rounds until `num_tokens` tokens were emitted or the caller stops; the last round may emit more.

    Before the call, target and drafter have begun the request: all prompt tokens but the last are in the target's
    cache, and the last one is the first root.

    Args:
        near_tie: choices with a smaller margin count as near-ties, which rounding could decide.
        stretches: plain rounds to time; None: there are none.
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
    report = drafter.accept(acceptance)  # before our own commit, as a drafter in another process may be waiting for it
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
