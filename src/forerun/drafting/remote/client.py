"""The parallel drafter as the decode loop sees it."""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel, LayerSkip
from forerun.core.errors import VocabularyError
from forerun.core.steps import DrafterState
from forerun.core.timing import Span
from forerun.drafting.drafter import Drafter, DraftReport, Measure
from forerun.drafting.lookup_chain import LookupChain
from forerun.drafting.remote.frames import FrameReader, to_frame
from forerun.drafting.remote.messages import Beat, Failure, Hello, Message, Proposal, Setup, Spans
from forerun.drafting.remote.patience import Patience
from forerun.drafting.remote.policy import RemotePolicy
from forerun.drafting.remote.protocol import TargetEnd, promise_of, value_of
from forerun.drafting.remote.supply import HelloCheck, WorkerSupply, WorkerWire
from forerun.drafting.remote.worker import MAX_FAULTS
from forerun.model.measure import widths_up_to
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree
from forerun.speculation.walk import Acceptance
from forerun.speculation.widths import WidthRule, chances_of

logger = logging.getLogger(__name__)

RETELL_S: Final = 0.5  # a drafter that speaks of an earlier request by then was never told of this one
MAX_UNHEARD_S: Final = 1.0  # a target at work listens more often than this
GOOD_WORK: Final = 10  # proposals after which a worker has shown that it works


class ParallelDrafter(Drafter):
    """Proposes what a drafter in another process sends, and goes on without it when it does not.

    Whatever happens to that process costs speed for a while: the next proposal is the root alone, which is plain
    decoding, and a new process is told the text so far.
    """

    def __init__(
        self,
        supply: WorkerSupply,
        draft: DraftModel | LayerSkip,
        policy: RemotePolicy,
        *,
        target_vocab_size: int,
        check: HelloCheck,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._supply, self._draft, self._check, self._clock = supply, draft, check, clock
        self.verify_width = draft.verify_width
        self._rule: WidthRule | None = None
        self._end = TargetEnd(Setup.wanted_by(draft, policy, target_vocab_size))
        self._lookup = LookupChain(num_tokens=self.verify_width - 1) if policy.looks_up else None
        self._patience = Patience()
        self._spans: list[Span] = []
        self._wire: WorkerWire | None = None
        self._is_ready = self._is_active = self._is_waiting = self._was_empty = False
        self._state = DrafterState.READY
        self.fault: str | None = None  # why the last worker was turned away
        self._reason = ""  # why this end has let go of it
        self._began_at = self._asked_at = self._proposed_at = self._told_at = 0.0
        self._last_heard = self._last_poll = self._silent_s = 0.0

    def adapt(self, measure: Measure) -> None:
        """Choose how many rows to verify by what they cost from now on; the draft's time is hidden behind them."""
        if self._draft.adaptive:
            self._rule = WidthRule(measure(widths_up_to(self.verify_width)), None)

    @property
    def process_id(self) -> int | None:
        return self._supply.pid if self._is_ready else None

    def wait_until_ready(self, timeout_s: float) -> bool:
        end = self._clock() + timeout_s
        while not self._is_ready and (left := end - self._clock()) > 0:
            if self._wire is None:
                self._attach(self._supply.wait(left))
                if self._wire is None:
                    break
            self._wire.wait(left)
            self._poll()
            if self.fault is not None:
                break
        self._note_state()
        if self.fault is not None:
            self.close()
            raise VocabularyError(f"the drafter's process does not fit: {self.fault}")
        return self._is_ready

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None:
        self._root, self._is_active = prompt_ids[-1], True
        self._patience.is_late = False
        if self._lookup is not None:
            self._lookup.begin(prompt_ids)
        self._began_at = self._last_poll = self._clock()
        self._last_heard = self._began_at - self._silent_s
        messages = self._end.begin(prompt_ids, params, None if noise is None else noise.seed)
        was_ready = self._is_ready
        self._poll()
        if was_ready and self._is_ready:
            self._send(messages)
        self._asked_at = self._told_at = self._clock()

    def propose(self) -> TokenTree:
        began, self._was_empty = self._clock(), False
        if self._end.tree() is None:  # else the poll after the verdict has brought it
            self._poll()
        tree = self._cut(self._end.tree())
        if not self._end.is_fresh and self._await(began, tree):
            self._was_empty = len(tree) == 1
            tree = self._cut(self._end.tree())
        self._proposed_at = self._clock()
        self._wait_s = self._proposed_at - began
        self._note_state()
        return tree

    def accept(self, acceptance: Acceptance) -> DraftReport:
        now = self._clock()
        self._patience.measure_step(now - self._proposed_at)
        if self._rule is not None:
            self._rule.end_round(now - self._proposed_at)
        verdict = self._end.commit(acceptance.tokens, self._patience.step_s)
        if self._is_ready:
            self._send(verdict)
        self._asked_at, self._root = now, acceptance.bonus_token
        if self._was_empty:
            self._patience.measure_gain(len(acceptance.path))
        if self._lookup is not None:
            self._lookup.accept(acceptance.tokens)
        self._poll()
        spans, self._spans = tuple(self._spans), []
        return DraftReport(was_hit=self._end.tree() is not None, wait_s=self._wait_s, state=self._state, spans=spans)

    def end(self) -> None:
        if self._is_active:
            self._is_active = False
            self._silent_s = self._clock() - self._last_heard  # goes on with the next request
            self._send(self._end.stop())

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._supply.close()
        self._wire, self._is_ready = None, False

    def _await(self, began: float, tree: TokenTree) -> bool:
        """Wait for the answer to the last verdict, as long as that pays; False when there is none."""
        value = value_of(tree, self.verify_width)
        end = began + self._patience.wait_s(value, promise_of(tree, self._draft.draft_width))
        self._is_waiting = True
        while self._is_ready and self._wire is not None and (left := end - self._clock()) > 0:
            self._wire.wait(left)
            self._poll()
            if self._end.is_fresh:
                self._is_waiting = False
                self._patience.measure_response(self._clock() - self._asked_at)
                return True
        self._is_waiting = False
        if end > began and self._is_ready:
            self._patience.miss_deadline(end - began)
        return False

    def _cut(self, sent: TokenTree | None) -> TokenTree:
        """The best of what was sent, and of what followed the last tokens earlier in the text; at least the root."""
        tree = TokenTree(self._root) if sent is None else sent
        if self._lookup is not None:
            tree = tree.copy()
            self._lookup.hang_into(tree)
        width = self.verify_width
        if self._rule is not None:
            width = self._rule.num_rows(chances_of(tree.log_probs), width)
        return tree.select(tree.best(width))

    def _poll(self) -> None:
        """Take in what has come, and see to the connection."""
        now = self._clock()
        if self._wire is None or not self._wire.is_open:
            self._attach(self._supply.take())
            if self._wire is None:
                return
        messages = self._reader.feed(self._wire.receive())
        if now - self._last_poll > MAX_UNHEARD_S:
            self._last_heard += now - self._last_poll  # nobody listened: that was not the drafter's silence
        self._last_poll = now
        if messages:
            self._patience.hear(now - self._last_heard)
            self._last_heard = now
        for message in messages:
            self._handle(message)
        is_hung = self._is_active and self._patience.is_hung(now - self._last_heard) and not self._supply.is_starved()
        if is_hung or self._reader.num_faults > MAX_FAULTS:
            self._reason = f"the drafter {'hangs' if is_hung else 'sends garbage'}, and is being replaced"
            self._detach()
            self._supply.replace()

    def _handle(self, message: Message) -> None:
        if 0 < message.request < self._end.request and self._clock() - self._told_at > RETELL_S:
            self._told_at = self._clock()
            self._send(self._end.retell())
        match message:
            case Proposal():
                self._end.receive(message)
                self._num_proposals += 1
                if message.repair_s and not self._is_waiting:
                    self._patience.measure_response(message.repair_s)
                if self._num_proposals == GOOD_WORK:
                    self._supply.mark_healthy()
                if self._patience.is_late and self._end.tree() is not None:
                    self._patience.is_late = False
            case Hello() if self._wire is not None:
                self._greet(message)
            case Spans():
                self._spans += [  # another host has another clock
                    Span("draft", start, end)
                    for start, end in message.times
                    if self._began_at <= start and end <= self._clock()
                ]
            case Failure():
                logger.warning("the drafter says: %s", message.text)
            case Beat() | _:
                pass

    def _greet(self, hello: Hello) -> None:
        self.fault = self._check(hello)
        if self.fault is None:
            self._is_ready = True
            self._send(self._end.resume())
        else:
            logger.error("the drafter is of no use: %s", self.fault)
            self._detach()

    def _attach(self, wire: WorkerWire | None) -> None:
        if self._wire is not None:
            self._detach()
        self._is_ready = False
        if wire is not None:
            self._wire, self._reader, self._num_proposals = wire, FrameReader(), 0
            self._last_heard = self._last_poll = self._clock()
            self._silent_s = 0.0
            self._patience.is_late = False

    def _detach(self) -> None:
        if self._wire is not None:
            self._wire.close()
        self._wire, self._is_ready = None, False
        self._end.forget_connection()

    def _send(self, messages: Sequence[Message]) -> None:
        if self._wire is not None:
            for message in messages:
                self._wire.send(to_frame(message))

    def _note_state(self) -> None:
        """Say once when the drafter goes and when it is back."""
        if not self._is_ready:
            state = DrafterState.DOWN
        else:
            state = DrafterState.LATE if self._patience.is_late else DrafterState.READY
        if state == self._state:
            return
        if state is DrafterState.DOWN:
            logger.warning(
                "drafting has stopped, decoding goes on plainly: %s",
                self._reason or self._supply.trouble or "its process has gone",
            )
            self._reason = ""
        elif self._state is DrafterState.DOWN:
            logger.info("drafting")
        else:
            logger.debug("the drafter is %s", state)
        self._state = state
