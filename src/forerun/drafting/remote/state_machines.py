"""The protocol between target and drafter as two state machines, without I/O, model or clock.

Every message contains a length of the text, which only grows during a request. That is enough to detect messages that
are late, duplicated, out of order or lost:

* A verdict contains all tokens that the drafter has not confirmed. The drafter uses the new ones and ignores the rest.
* A proposal for an earlier text is still usable: its subtree below the tokens committed since is valid.

Source: SwiftSpec, arXiv 2506.11309, algorithm 1. There, each proposal answers a verdict and both sides wait at a
barrier. Here the drafter may also send its whole tree before the verdict, and the target finds its next proposal in it.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from secrets import token_bytes
from typing import Final, Protocol, TypeAlias

from forerun.core.config import SamplingParams
from forerun.drafting.remote.messages import MAX_NODES, OWNER_BYTES, Begin, Message, Proposal, Setup, Stop, Verdict
from forerun.drafting.remote.waiting import NEWEST, SEND_WITHIN, TREES_PER_CUT, repair_pays
from forerun.sampling.noise import KeyedNoise
from forerun.speculation.referee.costs import blend
from forerun.speculation.tree import TokenTree

HIT_WEIGHT: Final = 0.1  # weight of the newest verdict in the share of hits
LEAST_LOG_PROB: Final = -1e5  # floor of a sent guess; lower values are practically impossible
MakeNoise: TypeAlias = Callable[[int | None], KeyedNoise | None]  # seed to noise; both are None for greedy requests


class Grower(Protocol):
    """A tree of guesses below the committed text; `DraftTree` is one."""

    @property
    def tree(self) -> TokenTree: ...

    @property
    def is_rooted(self) -> bool: ...

    def reset(
        self, prompt_ids: Sequence[int], params: SamplingParams, noise: KeyedNoise | None, owner: str = ""
    ) -> None: ...

    def prefill(self) -> bool: ...

    def expand(self) -> bool: ...

    def advance(self, token_ids: Sequence[int]) -> bool: ...


class DrafterEnd:
    """The drafter's state machine: it grows the tree while the target verifies, and answers verdicts.

    After a verdict it answers as soon as the new root has been expanded and no further expansion, of at most
    `max_repairs`, is worth the target's waiting time.
    Between verdicts it grows the tree, unless an expansion would end too long after the next verdict is expected. Such
    a delay pays off after a hit and is lost after a miss, so its limit is proportional to the share of hits.
    """

    def __init__(self, grower: Grower, setup: Setup, *, make_noise: MakeNoise, clock: Callable[[], float]) -> None:
        self._grower = grower
        self._setup = setup
        self._make_noise = make_noise
        self._clock = clock
        self._sent_nodes = min(setup.verify_width * TREES_PER_CUT, MAX_NODES)
        self.request = 0
        self.is_active = False
        self.expansion_s = 0.0
        self._hit_share = 0.5
        self.num_expansions = 0
        self._committed_len = self._serial = 0
        self._must_answer = self._is_grown = False  # `_is_grown`: no node is left to expand
        self._num_repairs = 0
        self._step_s = self._asked_at = self._verdict_due = 0.0

    def receive(self, message: Message) -> None:
        """Process a message; one that does not fit the state is out of date and ignored."""
        match message:
            case Begin() if message.request > self.request:
                self._start_request(message)
            case Verdict() if message.request == self.request and self.is_active:
                self._advance(message)
            case Stop() if message.request == self.request:
                self.is_active = False
            case _:
                pass

    def idle_s(self) -> float | None:
        """Seconds until there is work: 0 if there is work now, None if only a message can bring work."""
        if not self.is_active or (self._is_grown and not self._must_answer):
            return None
        if self._must_answer:
            return 0.0
        late = self._clock() + self.expansion_s - self._verdict_due
        allowed_s = self._setup.policy.max_lateness * self._hit_share * self.expansion_s
        if late <= allowed_s or late > self.expansion_s + self._step_s:
            return 0.0  # there is time for one more, or the verdict is too late to be predicted
        return max(self.expansion_s + self._step_s - late, 1e-4)

    def work(self) -> list[Proposal]:
        """Do one step: answer if an answer is due and the tree is ready, otherwise prefill or expand."""
        if self._must_answer and (self._is_grown or not self._repair_pays()):
            return self._answer()
        if self._grower.prefill():
            return []
        began = self._clock()
        self._is_grown = not self._grower.expand()
        if not self._is_grown:
            self.num_expansions += 1
            self.expansion_s = blend(self.expansion_s, self._clock() - began, NEWEST)
        if self._must_answer:
            self._num_repairs += 1
            return self._answer() if self._is_grown or not self._repair_pays() else []
        return [self._proposal()] if self._may_be_needed() else []

    def _start_request(self, message: Begin) -> None:
        self.request = message.request
        self.is_active = True
        self._committed_len = len(message.prompt_ids)
        self._serial = 0
        self._step_s = 0.0
        noise = self._make_noise(message.seed)
        self._grower.reset(message.prompt_ids, message.params, noise, message.owner.hex())
        self._await_answer()

    def _advance(self, verdict: Verdict) -> None:
        num_known = self._committed_len - verdict.base_len
        if not 0 <= num_known < len(verdict.token_ids):
            return  # no new tokens, or a gap that the next verdict closes
        is_hit = self._grower.advance(verdict.token_ids[num_known:])
        self._hit_share += HIT_WEIGHT * (is_hit - self._hit_share)
        self._committed_len = verdict.base_len + len(verdict.token_ids)
        self._step_s = verdict.step_s
        assert self._grower.tree.token_ids[0] == verdict.token_ids[-1], "the root is the last committed token"
        self._await_answer()

    def _may_be_needed(self) -> bool:
        """True if the tree should be sent ahead, because the verdict may come before the next expansion ends."""
        is_due = self._clock() + SEND_WITHIN * self.expansion_s >= self._verdict_due
        return self._setup.policy.sends_ahead and is_due and not self._is_grown and self._grower.is_rooted

    def _repair_pays(self) -> bool:
        """True if it pays off for the target to wait for one more expansion.

        The first one after a miss always does, since there is nothing else to verify.
        """
        if not self._grower.is_rooted:
            return True
        if self._num_repairs >= self._setup.policy.max_repairs or not self._step_s:
            return False
        widths = self._setup.verify_width, self._setup.draft_width
        return repair_pays(self._grower.tree, *widths, step_s=self._step_s, expansion_s=self.expansion_s)

    def _await_answer(self) -> None:
        self._must_answer = True
        self._is_grown = False
        self._num_repairs = 0
        self._asked_at = self._clock()
        self._verdict_due = self._asked_at + self._step_s

    def _answer(self) -> list[Proposal]:
        now = self._clock()
        self._must_answer = False
        self._verdict_due = now + self._step_s
        return [self._proposal(now - self._asked_at if self._num_repairs and self._step_s else 0.0)]

    def _proposal(self, repair_s: float = 0.0) -> Proposal:
        """The likeliest nodes of the tree, with all their ancestors, root first; the whole tree if it is small."""
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
    """The target's state machine: it holds the text and the newest tree received for it.

    Invariant: the drafter has `confirmed_len` tokens of the text, which never exceeds the text's length.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.owner = ""
        self.forget()
        self._begin: Begin | None = None
        self.request = 0  # number of the latest request
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
    def committed_len(self) -> int:
        return len(self._token_ids)

    @property
    def is_fresh(self) -> bool:
        """True if the newest tree is the answer to the last verdict."""
        return self._newest is not None and self._newest.base_len == self.committed_len

    def forget(self) -> None:
        """Change the owners' marks, so that the drafter never reuses its earlier texts."""
        self._salt = token_bytes(OWNER_BYTES)

    def start_request(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int | None) -> list[Message]:
        """The message that starts a request of `owner` and ends the previous one."""
        self.request += 1
        mark = blake2b(self.owner.encode("utf-8", "surrogatepass"), digest_size=OWNER_BYTES, key=self._salt).digest()
        self._begin = Begin(request=self.request, prompt_ids=tuple(prompt_ids), params=params, seed=seed, owner=mark)
        self._token_ids = list(prompt_ids)
        self.forget_connection()
        return [self._begin]

    def stop(self) -> list[Message]:
        """The message that ends a request."""
        self._begin = None
        return [Stop(request=self.request)]

    def resume(self) -> list[Message]:
        """The messages for a new drafter: the settings, the request and the text so far."""
        self.forget_connection()
        return [self._setup, *self.retell()]

    def retell(self) -> list[Message]:
        """The request and the text so far, for a drafter that may have missed them; otherwise it ignores them."""
        if self._begin is None:
            return []
        return [self._begin, *([self._verdict()] if self._unconfirmed() else [])]

    def commit(self, token_ids: Sequence[int], step_s: float) -> list[Message]:
        """The message for committed tokens; the last one is the new root."""
        self._token_ids.extend(token_ids)
        self._step_s = step_s
        return [self._verdict()]

    def receive(self, proposal: Proposal) -> None:
        """Store a tree if it is newer than the stored one and matches this text."""
        is_ours = proposal.request == self.request and self._begin is not None
        if not is_ours or not self.confirmed_len <= proposal.base_len <= self.committed_len:
            return
        if proposal.token_ids[0] != self._token_ids[proposal.base_len - 1]:
            return
        self.confirmed_len = proposal.base_len
        newest = self._newest
        if newest is None or (proposal.base_len, proposal.serial) > (newest.base_len, newest.serial):
            self._newest = proposal
            self._rerooted_len = -1

    def tree(self) -> TokenTree | None:
        """The subtree of the newest tree at the text's last token; None if it lacks that token."""
        if self._newest is None:
            return None
        if self._rerooted_len != self.committed_len:
            self._rerooted = self._reroot(self._newest)
            self._rerooted_len = self.committed_len
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
        """Reset the state of the connection to a lost drafter."""
        self._newest = None
        self._rerooted_len = -1
        self.confirmed_len = 0 if self._begin is None else len(self._begin.prompt_ids)

    def _unconfirmed(self) -> list[int]:
        return self._token_ids[self.confirmed_len :]

    def _verdict(self) -> Verdict:
        return Verdict(
            request=self.request,
            base_len=self.confirmed_len,
            token_ids=tuple(self._unconfirmed()),
            step_s=self._step_s,
        )
