"""Policies of the drafters beyond their settings, one object each, which experiments can replace."""

import itertools
from dataclasses import dataclass
from typing import Protocol

from forerun.core.drafter_config import DrafterConfig, LayerSkip, Parallel
from forerun.core.errors import require
from forerun.core.model_spec import ModelSpec
from forerun.drafting.layer_skip.policy import BEST_SKIPS, SkipPolicy
from forerun.drafting.remote.policy import BEST_REMOTE, RemotePolicy
from forerun.drafting.tree_policy import BEST_TREE, PAPER_TREE, TreePolicy

MOST_MATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy:
    """The lengths of matches of `prompt_lookup`: it looks up the last `lengths[0]` tokens first, then the next length.

    For each token of the text an n-gram of every length is stored. Tokens after a long match are accepted far more
    often: on the answers of a model of 1.5B to HumanEval, 10 and 6 besides 4, 3 and 2 made simulated decoding 10 %
    faster.
    """

    lengths: tuple[int, ...] = (10, 6, 4, 3, 2)

    def __post_init__(self) -> None:
        fall = all(longer > shorter for longer, shorter in itertools.pairwise(self.lengths))
        require(
            bool(self.lengths) and fall and self.lengths[-1] >= 1 and self.lengths[0] <= MOST_MATCH,
            f"match lengths {self.lengths} must fall and lie in [1, {MOST_MATCH}]",
        )


BEST_LOOKUP = LookupPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All policies: `tree` for every drafter that grows a tree, the others for one drafter each.

    No policy changes the text.
    """

    tree: TreePolicy = BEST_TREE
    lookup: LookupPolicy = BEST_LOOKUP
    skip: SkipPolicy = BEST_SKIPS
    remote: RemotePolicy = BEST_REMOTE

    @classmethod
    def of(cls, config: DrafterConfig) -> "Policies":
        """The default policies of a drafter; those of the SWIFT paper if the config selects the paper's search."""
        draft = config.draft if isinstance(config, Parallel) else config
        is_paper = isinstance(draft, LayerSkip) and draft.search == "paper"
        return cls(tree=PAPER_TREE) if is_paper else BEST


BEST = Policies()


class Loading(Protocol):
    """What a drafter may know while it is loaded."""

    policies: Policies
    spec: ModelSpec  # the target's
