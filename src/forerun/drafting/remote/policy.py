"""How target and drafter share the work of a request, for ablations."""

from dataclasses import dataclass
from typing import Final

from forerun.core.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionSettings:
    """When a drafter expands, and how much of its tree it sends; chosen by hand, not tuned.

    Args:
        trees_per_cut: nodes that are kept and sent, in cuts of `verify_width`: two for each of its outcomes.
        coverage: the share of an expanded node's probability that its kept children have.
        send_within: the tree is sent ahead when the verdict is expected within this many expansions: the next one, and
            a quarter for a verdict that comes early.
    """

    trees_per_cut: int = 16
    coverage: float = 0.6
    send_within: float = 1.25


EXPANSION: Final = ExpansionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """The defaults are what was fastest; with all of them off, the paper's scheme remains (SwiftSpec, 2506.11309).

    Args:
        sends_ahead: the drafter sends its tree before the verdict, so that the target need not wait for an answer where
            that tree has the outcome.
        looks_up: where there is no tree, the target takes what followed the last tokens earlier in the text.
        calibrates: the drafter learns how often the target agrees with the draft's probabilities.
        foresees: rows of a draft pass are given to what the draft may say in the same pass, from what it said before.
        max_repairs: expansions between verdict and answer, at most: the first after a miss always, others where they
            pay.
        max_lateness: an expansion may end after the verdict is expected by at most this share of its own length, times
            the share of verdicts that its tree had.
        is_traced: the drafter reports its busy times, for a timeline.
    """

    sends_ahead: bool = True
    looks_up: bool = True
    calibrates: bool = True
    foresees: bool = True
    max_repairs: int = 2
    max_lateness: float = 1.0
    is_traced: bool = False

    def __post_init__(self) -> None:
        require(1 <= self.max_repairs <= 16, f"max_repairs {self.max_repairs} must lie in [1, 16]")
        require(0.0 <= self.max_lateness <= 1e6, f"max_lateness {self.max_lateness} must lie in [0, 1e6]")


BEST_REMOTE = RemotePolicy()
