"""Policies for how target and drafter share the work of a request, for ablations."""

from dataclasses import dataclass

from forerun.core.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """The defaults were the fastest. With all of them off, it is the paper's scheme (SwiftSpec, 2506.11309).

    Args:
        sends_ahead: the drafter sends its tree before the verdict, so that the target need not wait for an answer if
            that tree contains the accepted tokens.
        looks_up: the target adds looked-up text to the tree.
        calibrates: the drafter measures how often the target agrees with the draft's probabilities.
        foresees: a draft pass also expands children that are guessed from the draft's earlier predictions.
        max_repairs: the most expansions between verdict and answer. The first after a miss always runs, others only if
            they pay off.
        max_lateness: an expansion may end later than the expected verdict by at most this share of its duration, times
            the share of verdicts that were in the tree.
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
