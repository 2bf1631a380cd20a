"""What target and drafter tell each other.

Nothing but ids, counts, probabilities and seeds crosses: no object, no tensor, no code.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

from forerun.core.config import SamplingParams
from forerun.core.drafter_config import DraftModel, LayerSkip
from forerun.drafting.remote.policy import RemotePolicy
from forerun.drafting.tree_policy import TreePolicy

MAX_VOCABULARY: Final = 1 << 22  # bytes
MAX_NODES: Final = 1024  # of one proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Drafter to target, once: who is there. `vocabulary` is what its ids stand for, four bytes each."""

    request: int = 0
    pid: int
    vocab_size: int
    max_length: int
    vocabulary: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Target to drafter, once: what trees are wanted. The fields are those of `DraftModel` and of both policies."""

    request: int = 0
    target_vocab_size: int
    verify_width: int
    draft_width: int
    children: int
    max_repairs: int
    max_lateness: float
    noise_aware: bool
    lookup: bool
    calibrates: bool
    sends_ahead: bool
    is_traced: bool

    @property
    def tree_policy(self) -> TreePolicy:
        """How the drafter grows: an expansion that nobody waits for is worth whatever it brings."""
        return TreePolicy(num_children=self.children, min_mass=0.0, knows_noise=self.noise_aware, looks_up=self.lookup)

    @classmethod
    def wanted_by(
        cls, draft: DraftModel | LayerSkip, policy: RemotePolicy, tree: TreePolicy, target_vocab_size: int
    ) -> "Setup":
        """What a drafter is told of these settings."""
        return cls(
            target_vocab_size=target_vocab_size,
            verify_width=draft.verify_width,
            draft_width=draft_width_of(draft),
            children=tree.num_children,
            max_repairs=policy.max_repairs,
            max_lateness=policy.max_lateness,
            noise_aware=tree.knows_noise,
            lookup=tree.looks_up,
            calibrates=policy.calibrates,
            sends_ahead=policy.sends_ahead,
            is_traced=policy.is_traced,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Target to drafter: a request. The last prompt token is the first root; `seed` None is greedy."""

    request: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Target to drafter: the text after its first `base_len` tokens goes on with `token_ids`; the last is the root.

    It repeats all that the drafter has not confirmed yet, so that a lost verdict is made good by the next one.

    Args:
        step_s: how long the target takes from a tree to its verdict.
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
    """Drafter to target: the tree below the last of the text's first `base_len` tokens.

    Nodes are given in order, parents first; node 0 is the root, and names itself as its
    parent. `serial` counts the proposals of a request.

    Args:
        repair_s: seconds from a verdict that missed the tree to this answer; 0 for any other proposal.
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
    """Drafter to target: I am alive."""

    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Drafter to target: when its last expansions began and ended, in seconds of its machine's monotonic clock."""

    request: int
    times: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Drafter to target: why it is about to end."""

    request: int = 0
    text: str


def draft_width_of(draft: DraftModel | LayerSkip) -> int:
    """Nodes of an expansion. A target with sublayers left out drafts a chain."""
    return draft.draft_width if isinstance(draft, DraftModel) else 1


Message: TypeAlias = Hello | Setup | Begin | Verdict | Stop | Proposal | Beat | Spans | Failure
