"""Policy of self-drafting beyond its settings, for ablations."""

from dataclasses import dataclass

from forerun.core.drafter_config import require_shape
from forerun.core.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipPolicy:
    """The defaults were the fastest.

    Args:
        draft_width: nodes that one draft pass expands; 1 drafts a chain, with alternatives to every token.
        search_share: limit on the gated search's share of the time.
        seed: seed of the search; it does not affect the text.
    """

    draft_width: int = 1
    search_share: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        require_shape(self)
        require(0.0 < self.search_share <= 1.0, f"search_share {self.search_share} must lie in (0, 1]")
        require(self.seed >= 0, f"seed {self.seed} of the search must be >= 0")


BEST_SKIPS = SkipPolicy()
