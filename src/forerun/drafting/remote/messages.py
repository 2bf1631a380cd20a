"""The messages between target and drafter.

They contain only plain values such as token ids, counts, probabilities and text: no objects, tensors or code. A message
that is received has the ranges and lengths given here, and has passed `check`.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import le, lt
from typing import Annotated, Final, Self, TypeAlias

from msgspec import Meta, Struct

from forerun.core.config import SamplingParams
from forerun.drafting.policies import RemotePolicy, TreePolicy

MAX_VOCABULARY: Final = 1 << 22  # bytes
MAX_NODES: Final = 1024  # nodes of one proposal
MAX_TEXT: Final = 1 << 15  # characters
OWNER_BYTES: Final = 16  # enough for different marks of all owners

SHAPING: Final = (  # the parameters that a drafter needs besides the biases
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)

Number = Annotated[int, Meta(ge=0, lt=2**32)]
Length = Annotated[int, Meta(ge=1, lt=2**32)]
Width = Annotated[int, Meta(ge=1, le=MAX_NODES)]
Node = Annotated[int, Meta(ge=0, lt=MAX_NODES)]
TokenIds = Annotated[tuple[Number, ...], Meta(min_length=1)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0.0, lt=1e6)]
Moment = Annotated[float, Meta(ge=0.0, lt=1e12)]


class Base(Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """The base of all messages."""

    request: Number = 0


class Hello(Base, frozen=True, kw_only=True):
    """Drafter to target, once: its identity.

    Args:
        vocab_size: number of token ids that it accepts, which are the target's.
        vocabulary: four bytes per token id, which identify its token.
        known: one bit per token id, lowest bit first: whether it can propose that token; empty: all of them.
    """

    pid: Number
    vocab_size: Number
    max_length: Number
    vocabulary: Annotated[bytes, Meta(max_length=MAX_VOCABULARY)]
    known: bytes = b""

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens it cannot propose."""
        ids = [token_id for token_id in token_ids if token_id < self.vocab_size]
        num_known = sum(self.known[id_ >> 3] >> (id_ & 7) & 1 for id_ in ids) if self.known else len(ids)
        return len(token_ids) - num_known


class Setup(Base, frozen=True, kw_only=True):
    """Target to drafter, once: the settings of the trees.

    Args:
        verify_width: the most nodes that the target verifies in a round.
        draft_width: nodes of an expansion.
    """

    target_vocab_size: Length
    verify_width: Width
    draft_width: Width
    tree: TreePolicy
    policy: RemotePolicy


class Begin(Base, frozen=True, kw_only=True):
    """Target to drafter: a request. The last prompt token is the first root; `seed` None is greedy.

    Args:
        owner: OWNER_BYTES that identify the text's owner: the drafter reuses cached texts only within one owner.
    """

    prompt_ids: TokenIds
    params: SamplingParams
    seed: Seed | None
    owner: Annotated[bytes, Meta(min_length=OWNER_BYTES, max_length=OWNER_BYTES)] = bytes(OWNER_BYTES)


class Verdict(Base, frozen=True, kw_only=True):
    """Target to drafter: after its first `base_len` tokens, the text continues with `token_ids`; the last is the root.

    It repeats all tokens that the drafter has not confirmed yet, so the next verdict makes up for a lost one.

    Args:
        step_s: the target's time from a tree to its verdict.
    """

    base_len: Length
    token_ids: TokenIds
    step_s: Seconds


class Stop(Base, frozen=True, kw_only=True):
    """Target to drafter: the request has ended."""


class Proposal(Base, frozen=True, kw_only=True):
    """Drafter to target: a tree whose root is the last of the text's first `base_len` tokens.

    Parents come before their children. Node 0 is the root and its own parent. `serial` counts the proposals of a
    request.

    Args:
        repair_s: seconds from a verdict that was not in the tree to this answer; 0 for any other proposal.
    """

    base_len: Length
    serial: Number
    repair_s: Seconds
    token_ids: TokenIds
    parents: tuple[Node, ...]
    log_probs: tuple[float, ...]


class Beat(Base, frozen=True, kw_only=True):
    """Drafter to target: a heartbeat."""


class Spans(Base, frozen=True, kw_only=True):
    """Drafter to target: start and end times of its last expansions, in seconds of its machine's monotonic clock."""

    times: tuple[tuple[Moment, Moment], ...]


class Failure(Base, frozen=True, kw_only=True):
    """Drafter to target: why it is about to end."""

    text: Annotated[str, Meta(max_length=MAX_TEXT)]

    @classmethod
    def of(cls, reason: str) -> Self:
        """The message with as much of this text as fits."""
        return cls(text=reason[:MAX_TEXT].encode("utf-8", errors="replace").decode("utf-8"))


Message: TypeAlias = Hello | Setup | Begin | Verdict | Stop | Proposal | Beat | Spans | Failure


def shaping(params: SamplingParams) -> SamplingParams:
    """The parameters that shape scores, which are all that a drafter needs, without biases of ids that no vocabulary
    has."""
    biases = {token_id: bias for token_id, bias in params.logit_bias.items() if 0 <= token_id < 2**32}
    return SamplingParams(**{name: getattr(params, name) for name in SHAPING}, logit_bias=biases)


def check(message: Message) -> None:
    """Raise ValueError for a message that is invalid although each of its fields is possible."""
    match message:
        case Hello():
            need(len(message.vocabulary) % 4 == 0, f"a vocabulary of {len(message.vocabulary)} bytes")
            num_known = len(message.known)
            need(num_known in (0, (message.vocab_size + 7) // 8), f"{num_known} bytes for the known tokens")
        case Begin():
            need((message.seed is None) == message.params.is_greedy, "noise for a greedy request, or none for another")
        case Proposal():
            check_tree(message)
        case Spans():
            flat = [moment for span in message.times for moment in span]
            need(all(left <= right for left, right in pairwise(flat)), "moments out of order")
        case _:
            pass


def check_tree(proposal: Proposal) -> None:
    num_nodes = len(proposal.token_ids)
    log_probs = proposal.log_probs
    below = proposal.parents[1:]
    need(num_nodes <= MAX_NODES, f"{num_nodes} nodes")
    need(num_nodes == len(proposal.parents) == len(log_probs), "lists of different lengths")
    need(all(map(lt, below, range(1, num_nodes))), "a parent after its child")
    need(log_probs[0] <= 0.0 and min(log_probs) > -1e6, "a log-probability out of range")
    # Also false for NaN. It follows that no node is likelier than the root.
    need(all(map(le, log_probs[1:], map(log_probs.__getitem__, below))), "a child likelier than its parent")


def need(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
