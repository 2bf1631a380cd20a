"""Both ends of the wire as state machines: no I/O, no model, no clock of their own.

The text is the only clock the two ends share. Every message names how many tokens of the text its sender stood at, and
the text only grows; so a message that is late, doubled, out of order or lost can be told from the number alone:

* a verdict carries all tokens the drafter has not confirmed; it takes those it lacks and ignores the rest;
* a proposal for an earlier text is still a tree, and what it says below the tokens committed since is as good as ever.

Source: SwiftSpec, arXiv 2506.11309, algorithm 1. There, a round's proposal and verdict name each other and both sides
meet at a barrier. Here the drafter need not be asked: it may send its whole tree `ahead` of the verdict, and the target
finds its next proposal in it.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from forerun.core.config import SamplingParams
from forerun.drafting.remote.estimates import blend, expected_tokens
from forerun.drafting.remote.messages import MAX_NODES, Begin, Message, Proposal, Setup, Stop, Verdict
from forerun.drafting.remote.policy import EXPANSION
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.tree import TokenTree

LEAST_LOG_PROB: Final = -1e5  # of a guess when it is sent: less is as good as impossible
MakeNoise: TypeAlias = Callable[[int | None], KeyedNoise | None]  # of a seed; greedy requests have neither


class Grower(Protocol):
    """A tree of guesses below the committed text, as `DraftTree` has one."""

    @property
    def tree(self) -> TokenTree: ...

    @property
    def is_rooted(self) -> bool: ...

    @property
    def frontier_chance(self) -> float: ...

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None) -> None: ...

    def prefill(self) -> bool: ...

    def expand(self) -> bool: ...

    def advance(self, token_ids: Sequence[int]) -> bool: ...


class DrafterEnd:
    """Grows while the target verifies; answers verdicts.

    After a verdict it answers as soon as the new root has been expanded and no further expansion, of at most
    `max_repairs`, is worth the target's time.
    Between verdicts it grows, except where an expansion would still run when the next verdict is expected.
    """

    def __init__(self, grower: Grower, setup: Setup, *, make_noise: MakeNoise, clock: Callable[[], float]) -> None:
        self._grower, self._setup, self._make_noise, self._clock = grower, setup, make_noise, clock
        self._sent_nodes = min(setup.verify_width * EXPANSION.trees_per_cut, MAX_NODES)
        self.request = 0
        self.is_active = False
        self.expansion_s = 0.0
        self.num_expansions = 0
        self._committed_len = self._serial = 0
        self._must_answer = self._is_grown = False  # the second: nothing is left to expand
        self._num_repairs = 0
        self._step_s = self._asked_at = self._verdict_due = 0.0

    def receive(self, message: Message) -> None:
        """Take a message; what does not fit the state is out of date and ignored."""
        match message:
            case Begin() if message.request > self.request:
                self._begin(message)
            case Verdict() if message.request == self.request and self.is_active:
                self._advance(message)
            case Stop() if message.request == self.request:
                self.is_active = False
            case _:
                pass

    def idle_s(self) -> float | None:
        """Seconds until there is something to do: 0 now, None not before a message comes."""
        if not self.is_active or (self._is_grown and not self._must_answer):
            return None
        if self._must_answer:
            return 0.0
        late = self._clock() + self.expansion_s - self._verdict_due
        if late <= self._setup.policy.max_lateness * self.expansion_s or late > self.expansion_s + self._step_s:
            return 0.0  # there is time for one more, or the verdict is so late that nothing can be foretold
        return max(self.expansion_s + self._step_s - late, 1e-4)

    def work(self) -> list[Proposal]:
        """Do one thing: answer, if an answer is due and the tree is fit for it, else prefill or expand."""
        if self._must_answer and (self._is_grown or not self._repair_pays()):
            return self._answer()
        if self._grower.prefill():
            return []
        began = self._clock()
        self._is_grown = not self._grower.expand()
        if not self._is_grown:
            self.num_expansions += 1
            self.expansion_s = blend(self.expansion_s, self._clock() - began)
        if self._must_answer:
            self._num_repairs += 1
            return self._answer() if self._is_grown or not self._repair_pays() else []
        return [self._proposal()] if self._may_be_needed() else []

    def _begin(self, message: Begin) -> None:
        self.request, self.is_active = message.request, True
        self._committed_len, self._serial, self._step_s = len(message.prompt_ids), 0, 0.0
        self._grower.begin(message.prompt_ids, message.params, self._make_noise(message.seed))
        self._await_answer()

    def _advance(self, verdict: Verdict) -> None:
        num_known = self._committed_len - verdict.base_len
        if not 0 <= num_known < len(verdict.token_ids):
            return  # all known, or a gap that the next verdict closes
        self._grower.advance(verdict.token_ids[num_known:])
        self._committed_len = verdict.base_len + len(verdict.token_ids)
        self._step_s = verdict.step_s
        assert self._grower.tree.token_ids[0] == verdict.token_ids[-1], "the root is the last committed token"
        self._await_answer()

    def _may_be_needed(self) -> bool:
        """True when the verdict may come before the next expansion ends, and would find this tree."""
        is_due = self._clock() + EXPANSION.send_within * self.expansion_s >= self._verdict_due
        return self._setup.policy.sends_ahead and is_due and not self._is_grown and self._grower.is_rooted

    def _repair_pays(self) -> bool:
        """True when the target had better wait for one more expansion.

        The first one after a miss always: there is nothing else to verify. Any other, when the tokens it is expected to
        add exceed what the target would write in that time.
        """
        if not self._grower.is_rooted:
            return True
        if self._num_repairs >= self._setup.policy.max_repairs or not self._step_s:
            return False
        num_tokens = 1.0 + expected_tokens(self._grower.tree, self._setup.verify_width)
        return self._grower.frontier_chance * EXPANSION.coverage * self._step_s > num_tokens * self.expansion_s

    def _await_answer(self) -> None:
        self._must_answer, self._is_grown = True, False
        self._num_repairs, self._asked_at = 0, self._clock()
        self._verdict_due = self._asked_at + self._step_s

    def _answer(self) -> list[Proposal]:
        now, self._must_answer = self._clock(), False
        self._verdict_due = now + self._step_s
        return [self._proposal(now - self._asked_at if self._num_repairs and self._step_s else 0.0)]

    def _proposal(self, repair_s: float = 0.0) -> Proposal:
        """The best of the tree: root first, ancestor-closed, all of it if it is small."""
        tree = self._grower.tree
        if len(tree) > self._sent_nodes:
            tree = tree.select(tree.best(self._sent_nodes))
        self._serial += 1
        return Proposal(
            request=self.request,
            base_len=self._committed_len,
            serial=self._serial,
            repair_s=repair_s,
            token_ids=tuple(tree.token_ids),
            parents=(0, *tree.parents[1:]),
            log_probs=tuple(max(value, LEAST_LOG_PROB) for value in tree.log_probs),
        )


class TargetEnd:
    """Knows the text, and the newest tree that was sent for it.

    Invariant: `confirmed_len` tokens of the text are known to the drafter; it never exceeds the text's length.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._begin: Begin | None = None
        self._request = 0
        self._step_s = 0.0
        self._token_ids: list[int] = []
        self._newest: Proposal | None = None
        self._rerooted: TokenTree | None = None
        self._rerooted_len = -1
        self.confirmed_len = 0

    @property
    def is_active(self) -> bool:
        """True while a request runs."""
        return self._begin is not None

    @property
    def root(self) -> int:
        """The text's last token."""
        return self._token_ids[-1]

    @property
    def request(self) -> int:
        """Number of the request that began last."""
        return self._request

    @property
    def committed_len(self) -> int:
        return len(self._token_ids)

    @property
    def is_fresh(self) -> bool:
        """True when the newest tree was sent in answer to the last verdict."""
        return self._newest is not None and self._newest.base_len == self.committed_len

    def begin(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int | None) -> list[Message]:
        """What to send when a request starts; also ends the one before it."""
        self._request += 1
        self._begin = Begin(request=self._request, prompt_ids=tuple(prompt_ids), params=params, seed=seed)
        self._token_ids = list(prompt_ids)
        self.forget_connection()
        return [self._begin]

    def stop(self) -> list[Message]:
        """What to send when a request ends."""
        self._begin = None
        return [Stop(request=self._request)]

    def resume(self) -> list[Message]:
        """What to send to a drafter that knows nothing yet: the request, and the text so far."""
        self.forget_connection()
        return [self._setup, *self.retell()]

    def retell(self) -> list[Message]:
        """The request and the text so far, for a drafter that was never told of them; one that was ignores them."""
        if self._begin is None:
            return []
        return [self._begin, *([self._verdict()] if self._unconfirmed() else [])]

    def commit(self, token_ids: Sequence[int], step_s: float) -> list[Message]:
        """What to send when tokens were committed; the last one is the new root."""
        self._token_ids.extend(token_ids)
        self._step_s = step_s
        return [self._verdict()]

    def receive(self, proposal: Proposal) -> None:
        """Take a tree, if it is newer than the newest and belongs to this text."""
        is_ours = proposal.request == self._request and self._begin is not None
        if not is_ours or not self.confirmed_len <= proposal.base_len <= self.committed_len:
            return
        if proposal.token_ids[0] != self._token_ids[proposal.base_len - 1]:
            return
        self.confirmed_len = proposal.base_len
        newest = self._newest
        if newest is None or (proposal.base_len, proposal.serial) > (newest.base_len, newest.serial):
            self._newest, self._rerooted_len = proposal, -1

    def tree(self) -> TokenTree | None:
        """What the newest tree has below the text's last token; None where it does not know that token."""
        if self._newest is None:
            return None
        if self._rerooted_len != self.committed_len:
            self._rerooted, self._rerooted_len = self._reroot(self._newest), self.committed_len
        return self._rerooted

    def _reroot(self, newest: Proposal) -> TokenTree | None:
        tree = TokenTree.of(newest.token_ids, newest.parents, newest.log_probs)
        token_ids = self._token_ids[newest.base_len :]
        nodes = tree.descend(token_ids)
        if len(nodes) < len(token_ids):
            return None
        if nodes:
            tree, _ = tree.subtree(nodes[-1])
        return tree

    def forget_connection(self) -> None:
        """The drafter is lost, with all that it knew."""
        self._newest, self._rerooted_len = None, -1
        self.confirmed_len = 0 if self._begin is None else len(self._begin.prompt_ids)

    def _unconfirmed(self) -> list[int]:
        return self._token_ids[self.confirmed_len :]

    def _verdict(self) -> Verdict:
        return Verdict(
            request=self._request,
            base_len=self.confirmed_len,
            token_ids=tuple(self._unconfirmed()),
            step_s=self._step_s,
        )
