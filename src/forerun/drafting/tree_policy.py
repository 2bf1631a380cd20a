"""Growth policy of a tree of guesses, apart from its widths; for ablations."""

from dataclasses import dataclass

from forerun.core.drafter_config import MOST_CHILDREN
from forerun.core.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePolicy:
    """The defaults were fastest on the built-in pair and on models of 125 million parameters.

    Args:
        num_children: children considered per expanded node.
        min_mass: growth ends when the next nodes to expand have a lower total probability than this, in [0, 1]; 0 grows
            to the full depth. No effect if costs decide.
        min_confidence: nothing is drafted after a token with a lower draft probability than this, in [0, 1].
        knows_noise: at temperature > 0 rank children by log q + g with the target's noise g, not by log q.
        looks_up: add a looked-up chain to the tree before it grows.
    """

    num_children: int = 4
    min_mass: float = 0.3
    min_confidence: float = 0.0
    knows_noise: bool = True
    looks_up: bool = True

    def __post_init__(self) -> None:
        require(
            1 <= self.num_children <= MOST_CHILDREN,
            f"num_children {self.num_children} must lie in [1, {MOST_CHILDREN}]: the kernels find no more",
        )
        for name in ("min_mass", "min_confidence"):
            require(0.0 <= getattr(self, name) <= 1.0, f"{name} {getattr(self, name)} must lie in [0, 1]")


BEST_TREE = TreePolicy()
# SWIFT (arXiv 2410.06916, section 4.2): a chain while the draft is confident, and second and third choices as siblings.
PAPER_TREE = TreePolicy(num_children=3, min_mass=0.0, min_confidence=0.8, knows_noise=False, looks_up=False)
