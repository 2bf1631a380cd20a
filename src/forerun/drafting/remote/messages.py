"""The messages between target and drafter.

They contain only plain values such as token ids, counts, probabilities and text: no objects, tensors or code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from forerun.core.config import SamplingParams
from forerun.drafting.remote.policy import RemotePolicy
from forerun.drafting.tree_policy import TreePolicy

MAX_VOCABULARY: Final = 1 << 22  # bytes
MAX_NODES: Final = 1024  # nodes of one proposal
OWNER_BYTES: Final = 16  # enough that no two owners have the same mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Drafter to target, once: its identity.

    Args:
        vocab_size: number of token ids that it accepts, which are the target's.
        vocabulary: four bytes per token id, which identify its token.
        known: one bit per token id, lowest bit first: whether it can propose that token; empty: all of them.
    """

    request: int = 0
    pid: int
    vocab_size: int
    max_length: int
    vocabulary: bytes
    known: bytes = b""

    def num_unknown(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens it cannot propose."""
        ids = [token_id for token_id in token_ids if token_id < self.vocab_size]
        num_known = sum(self.known[id_ >> 3] >> (id_ & 7) & 1 for id_ in ids) if self.known else len(ids)
        return len(token_ids) - num_known


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Target to drafter, once: the settings of the trees.

    Args:
        verify_width: the most nodes that the target verifies in a round.
        draft_width: nodes of an expansion.
    """

    request: int = 0
    target_vocab_size: int
    verify_width: int
    draft_width: int
    tree: TreePolicy
    policy: RemotePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Target to drafter: a request. The last prompt token is the first root; `seed` None is greedy.

    Args:
        owner: OWNER_BYTES that identify the text's owner: the drafter reuses cached texts only within one owner.
    """

    request: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int | None
    owner: bytes = bytes(OWNER_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Target to drafter: after its first `base_len` tokens, the text continues with `token_ids`; the last is the root.

    It repeats all tokens that the drafter has not confirmed yet, so the next verdict makes up for a lost one.

    Args:
        step_s: the target's time from a tree to its verdict.
    """

    request: int
    base_len: int
    token_ids: tuple[int, ...]
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Target to drafter: the request has ended."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Drafter to target: a tree whose root is the last of the text's first `base_len` tokens.

    Parents come before their children. Node 0 is the root and its own parent. `serial` counts the proposals of a
    request.

    Args:
        repair_s: seconds from a verdict that was not in the tree to this answer; 0 for any other proposal.
    """

    request: int
    base_len: int
    serial: int
    repair_s: float
    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Drafter to target: a heartbeat."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Drafter to target: start and end times of its last expansions, in seconds of its machine's monotonic clock."""

    request: int
    times: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Drafter to target: why it is about to end."""

    request: int = 0
    text: str


Message: TypeAlias = Hello | Setup | Begin | Verdict | Stop | Proposal | Beat | Spans | Failure
