"""Policies of the drafters beyond their settings, one object each, which experiments can replace."""

from dataclasses import dataclass

from forerun.core.drafter_config import DrafterConfig, LayerSkip, Parallel
from forerun.core.errors import require
from forerun.drafting.layer_skip.policy import BEST_SKIPS, SkipPolicy
from forerun.drafting.remote.policy import BEST_REMOTE, RemotePolicy
from forerun.drafting.tree_policy import BEST_TREE, PAPER_TREE, TreePolicy

MOST_MATCH = 16  # for each token of the text, n-grams of every length up to it are stored


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy:
    """Match lengths of the drafter `prompt_lookup`: it looks up the last `max_match` tokens, then fewer, down to
    `min_match`."""

    min_match: int = 2
    max_match: int = 4

    def __post_init__(self) -> None:
        require(
            1 <= self.min_match <= self.max_match <= MOST_MATCH,
            f"matches of {self.min_match} to {self.max_match} tokens must lie in [1, {MOST_MATCH}]",
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
