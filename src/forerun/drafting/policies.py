"""The drafters' policies beyond their settings: one object each, for experiments to replace."""

from dataclasses import dataclass

from forerun.core.drafter_config import DrafterConfig, LayerSkip, Parallel
from forerun.core.errors import require
from forerun.drafting.layer_skip.policy import BEST_SKIPS, SkipPolicy
from forerun.drafting.remote.policy import BEST_REMOTE, RemotePolicy
from forerun.drafting.tree_policy import BEST_TREE, PAPER_TREE, TreePolicy

MOST_MATCH = 16  # suffixes of every length up to it are kept for each token of the text


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupPolicy:
    """How the drafter `prompt_lookup` finds earlier text: by the last `max_match` tokens, else fewer, down to
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
    """All policies. A drafter reads its own: `tree` is for every drafter that grows one, the others for one each.

    No policy changes a token of the text.
    """

    tree: TreePolicy = BEST_TREE
    lookup: LookupPolicy = BEST_LOOKUP
    skip: SkipPolicy = BEST_SKIPS
    remote: RemotePolicy = BEST_REMOTE

    @classmethod
    def of(cls, config: DrafterConfig) -> "Policies":
        """A drafter's default policies: the paper's where its search is requested."""
        draft = config.draft if isinstance(config, Parallel) else config
        is_paper = isinstance(draft, LayerSkip) and draft.search == "paper"
        return cls(tree=PAPER_TREE) if is_paper else BEST


BEST = Policies()
