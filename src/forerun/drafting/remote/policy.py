"""How target and drafter share the work of a request: what may be varied to see what it is worth."""

from dataclasses import dataclass
from typing import Final

from forerun.core.drafter_config import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpansionSettings:
    """When a drafter expands, and how much of its tree it sends: chosen by hand, not tuned.

    Args:
        trees_per_cut: the tree is kept and sent so many times wider than a cut: about one cut for each outcome.
        coverage: of an expanded node's next tokens, the share that is among the children that are kept.
        early: a verdict may come earlier than expected by so many expansions less one.
    """

    trees_per_cut: int = 8
    coverage: float = 0.6
    early: float = 1.25


EXPANSION: Final = ExpansionSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePolicy:
    """The defaults are what was fastest; with all of them off, the paper's scheme remains (SwiftSpec, 2506.11309).

    Args:
        sends_ahead: the drafter sends its tree before the verdict, so that the target need not wait for an answer where
            that tree has the outcome.
        looks_up: where there is no tree, the target takes what followed the last tokens earlier in the text.
        calibrates: the drafter learns how often the target agrees with the draft's probabilities.
        max_repairs: expansions between verdict and answer, at most: the first after a miss always, others where they
            pay.
        max_lateness: an expansion is begun if it ends at most so many of its own lengths after the verdict is expected.
        is_traced: the drafter tells when it was at work, for a timeline.
    """

    sends_ahead: bool = True
    looks_up: bool = True
    calibrates: bool = True
    max_repairs: int = 2
    max_lateness: float = 0.35
    is_traced: bool = False

    @classmethod
    def of(cls, config: Parallel) -> "RemotePolicy":
        return cls(
            sends_ahead=config.ahead,
            looks_up=config.fill,
            calibrates=config.calibrate,
            max_repairs=config.repairs,
            max_lateness=config.overrun,
            is_traced=config.trace,
        )
