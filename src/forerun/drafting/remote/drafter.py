"""The part of the parallel drafter that runs in the target process."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel, LayerSkip
from forerun.core.errors import VocabularyError
from forerun.core.steps import DrafterState, Span
from forerun.drafting.drafter import Drafter, DraftOutcome, DraftReport, HasVocabulary, RunsElsewhere
from forerun.drafting.policies import BEST_TREE, RemotePolicy, TreePolicy
from forerun.drafting.prompt_lookup import LookupChain
from forerun.drafting.remote.connection import Connection, HelloCheck, WorkerSupply
from forerun.drafting.remote.messages import Failure, Hello, Message, Proposal, Setup, Spans, shaping
from forerun.drafting.remote.state_machines import TargetEnd
from forerun.drafting.remote.waiting import WaitPolicy, expansion_gain, expected_tokens
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.budget import ProposedTree, RowBudget
from forerun.speculation.tree import TokenTree

logger = logging.getLogger(__name__)

RETELL_S: Final = 0.5  # if the drafter still answers an earlier request after this time, it missed the new one


class ParallelDrafter(Drafter, RunsElsewhere, HasVocabulary):
    """Proposes trees that another process sends; without one, it proposes only the root, which is plain decoding.

    If that process fails, decoding continues at plain speed until a new process has received the text so far.
    """

    def __init__(
        self,
        supply: WorkerSupply,
        draft: DraftModel | LayerSkip,
        policy: RemotePolicy,
        tree: TreePolicy = BEST_TREE,
        *,
        target_vocab_size: int,
        check: HelloCheck,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.verify_width = draft.verify_width
        self._clock = clock
        self._connection = Connection(supply, check, clock)
        # Self-drafting grows a chain.
        self._draft_width = draft.draft_width if isinstance(draft, DraftModel) else 1
        setup = Setup(
            target_vocab_size=target_vocab_size,
            verify_width=draft.verify_width,
            draft_width=self._draft_width,
            tree=tree,
            policy=policy,
        )
        self._end = TargetEnd(setup)
        self._waiting = WaitPolicy()
        self._lookup = LookupChain(num_tokens=self.verify_width - 1) if policy.looks_up else None
        self._hello: Hello | None = None
        self._spans: list[Span] = []
        self._state = DrafterState.READY
        self._was_empty = False  # without the wait there would have been no proposal
        self._began_at = self._asked_at = self._told_at = self._proposed_at = 0.0

    @property
    def process_id(self) -> int | None:
        return self._connection.supply.pid if self._connection.is_ready else None

    @property
    def is_answered(self) -> bool:
        """True if the newest tree is the answer to the last verdict."""
        return self._end.is_fresh

    def wait_until_ready(self, timeout_s: float) -> bool:
        connection = self._connection
        end = self._clock() + timeout_s
        while not connection.is_ready and connection.fault is None and (left := end - self._clock()) > 0:
            if not connection.wait(left):
                break
            self._poll()
        self._log_state()
        if connection.fault is not None:
            self.close()
            raise VocabularyError(f"the drafter's process does not fit: {connection.fault}")
        return connection.is_ready

    def forget(self) -> None:
        self._end.forget()

    def begin(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None:
        self._end.owner = owner
        self._waiting.is_late = False
        if self._lookup is not None:
            self._lookup.read_prompt(prompt_ids)
        self._began_at = self._clock()
        self._connection.start_request()
        messages = self._end.start_request(prompt_ids, shaping(params), None if noise is None else noise.seed)
        was_ready = self._connection.is_ready
        self._poll()
        if was_ready and self._connection.is_ready:
            self._connection.send(messages)
        self._asked_at = self._told_at = self._clock()

    def propose(self, budget: RowBudget) -> ProposedTree:
        began = self._clock()
        self._was_empty = False
        if self._end.tree() is None:  # otherwise the poll after the verdict already received it
            self._poll()
        tree = self._tree_of(self._end.tree())
        if not self._end.is_fresh and self._await_answer(began, tree):
            self._was_empty = len(tree) == 1
            tree = self._tree_of(self._end.tree())
        self._proposed_at = self._clock()
        self._wait_s = self._proposed_at - began
        self._log_state()
        return ProposedTree(tree=tree)

    def told(self, outcome: DraftOutcome) -> DraftReport:
        now = self._clock()
        if not outcome.is_own:
            if self._lookup is not None:
                self._lookup.follow()
            self._send_verdict(outcome.tokens, now)
            return DraftReport(state=self._state)
        self._waiting.measure_step(now - self._proposed_at)
        if self._was_empty:
            self._waiting.measure_gain(len(outcome.path))
        self._send_verdict(outcome.tokens, now)
        spans = tuple(self._spans)
        self._spans = []
        return DraftReport(was_hit=self._end.tree() is not None, wait_s=self._wait_s, state=self._state, spans=spans)

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        return 0 if self._hello is None else self._hello.num_unknown(token_ids)

    def end(self) -> None:
        if self._end.is_active:
            self._connection.end()
            self._connection.send(self._end.stop())

    def close(self) -> None:
        self._connection.close()

    def _send_verdict(self, token_ids: tuple[int, ...], now: float) -> None:
        """Send the verdict of the round that ended at `now`, and process the received messages."""
        verdict = self._end.commit(token_ids, self._waiting.step_s)
        if self._connection.is_ready:
            self._connection.send(verdict)
        self._asked_at = now
        if self._lookup is not None:
            self._lookup.accept(token_ids)
        self._poll()

    def _await_answer(self, began: float, tree: TokenTree) -> bool:
        """Wait for the answer to the last verdict as long as that pays off; False if none came."""
        connection = self._connection
        waiting = self._waiting
        num_expected = expected_tokens(tree, self.verify_width)
        end = began + waiting.wait_s(num_expected, expansion_gain(tree, self.verify_width, self._draft_width))
        while connection.is_ready and (left := end - self._clock()) > 0:
            connection.wait(left)
            self._poll(is_waiting=True)
            if self._end.is_fresh:
                waiting.measure_response(self._clock() - self._asked_at)
                return True
        if end > began and connection.is_ready:
            waiting.miss_deadline(end - began)
        return False

    def _tree_of(self, sent: TokenTree | None) -> TokenTree:
        """The received tree with looked-up text; at least the root."""
        tree = TokenTree(self._end.root) if sent is None else sent
        if self._lookup is not None:
            tree = tree.copy()
            self._lookup.hang_into(tree)
        return tree

    def _poll(self, *, is_waiting: bool = False) -> None:
        """Process the received messages."""
        for message in self._connection.receive(is_wanted=self._end.is_active):
            self._handle(message, is_waiting)
        if not self._connection.is_ready:
            self._end.forget_connection()

    def _handle(self, message: Message, is_waiting: bool) -> None:
        if 0 < message.request < self._end.request and self._clock() - self._told_at > RETELL_S:
            self._told_at = self._clock()
            self._connection.send(self._end.retell())
        match message:
            case Proposal():
                self._end.receive(message)
                if message.repair_s and not is_waiting:
                    self._waiting.measure_response(message.repair_s)
                if self._waiting.is_late and self._end.tree() is not None:
                    self._waiting.is_late = False
            case Hello() if self._connection.is_ready:
                self._hello = message
                self._waiting.is_late = False
                self._connection.send(self._end.resume())
            case Spans():
                self._spans += [  # skip times from another machine's clock
                    Span("draft", start, end)
                    for start, end in message.times
                    if self._began_at <= start and end <= self._clock()
                ]
            case Failure():
                logger.warning("the drafter says: %s", message.text)
            case _:
                pass

    def _log_state(self) -> None:
        """Log each change of the drafter's state."""
        if not self._connection.is_ready:
            state = DrafterState.DOWN
        else:
            state = DrafterState.LATE if self._waiting.is_late else DrafterState.READY
        if state == self._state:
            return
        if state is DrafterState.DOWN:
            logger.warning("drafting has stopped, plain decoding continues: %s", self._connection.trouble)
        elif self._state is DrafterState.DOWN:
            logger.info("drafting")
        else:
            logger.debug("the drafter is %s", state)
        self._state = state
