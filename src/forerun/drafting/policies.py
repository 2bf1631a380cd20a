"""Policies of the drafters beyond their settings, one object each, which experiments can replace."""

import itertools
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Protocol

from forerun.core.drafter_config import MOST_CHILDREN, Addition, DrafterConfig, LayerSkip, Parallel, require_shape
from forerun.core.errors import require
from forerun.core.model_spec import ModelSpec

MOST_MATCH = 64


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
        is_chain: grow a chain of the draft's likeliest tokens, each with as many alternatives as `num_candidates` gives
            for the draft's confidence in it; `num_children` is the most, and nothing is calibrated.
    """

    num_children: int = 4
    min_mass: float = 0.3
    min_confidence: float = 0.0
    knows_noise: bool = True
    looks_up: bool = True
    is_chain: bool = False

    def __post_init__(self) -> None:
        require(
            1 <= self.num_children <= MOST_CHILDREN,
            f"num_children {self.num_children} must lie in [1, {MOST_CHILDREN}]: the kernels find no more",
        )
        for name in ("min_mass", "min_confidence"):
            require(0.0 <= getattr(self, name) <= 1.0, f"{name} {getattr(self, name)} must lie in [0, 1]")


BEST_TREE = TreePolicy()
# Confidences, and the candidates in a chain's place above each: of greedy decoding, and when sampling.
CANDIDATES: Final = ((0.95, 3, 1), (0.8, 5, 3), (0.5, 8, 5))
MOST_CANDIDATES: Final = 10  # at any lower confidence


# SWIFT (arXiv 2410.06916, section 4.2): a chain while the draft is confident, and further choices as siblings.
PAPER_TREE = TreePolicy(
    num_children=MOST_CANDIDATES, min_mass=0.0, min_confidence=0.8, knows_noise=False, looks_up=False, is_chain=True
)


def num_candidates(confidence: float, *, is_greedy: bool) -> int:
    """The candidates in a place of a chain, by the confidence in its token: the draft's probability, unshaped.

    Source: SWIFT's code, `get_choices_list`; its paper has the second row of numbers for greedy decoding too.
    """
    numbers = (greedy if is_greedy else sampled for least, greedy, sampled in CANDIDATES if confidence > least)
    return next(numbers, MOST_CANDIDATES)


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
        best = BEST
        if isinstance(draft, LayerSkip) and draft.search == "paper":
            num_children = MOST_CANDIDATES if draft.siblings else 1
            best = cls(tree=replace(PAPER_TREE, min_confidence=draft.confidence, num_children=num_children))
        return best.without(config.without) if isinstance(config, Parallel) else best

    def without(self, left_out: Collection[Addition]) -> "Policies":
        """The same without some additions to the paper's parallel drafting."""
        looks_up = "lookup" not in left_out
        tree = replace(
            self.tree,
            looks_up=self.tree.looks_up and looks_up,
            knows_noise=self.tree.knows_noise and "noise" not in left_out,
        )
        remote = replace(
            self.remote,
            sends_ahead="send_ahead" not in left_out,
            looks_up=looks_up,
            calibrates="calibration" not in left_out,
            foresees="foresight" not in left_out,
            max_repairs=1 if "repairs" in left_out else self.remote.max_repairs,
        )
        return replace(self, tree=tree, remote=remote)


BEST = Policies()


class Loading(Protocol):
    """What a drafter may know while it is loaded."""

    policies: Policies
    spec: ModelSpec  # the target's
