"""The most that one drafter in parallel can reach with a pair of models, and what takes the rest of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from forerun.core.drafter_config import Parallel
from forerun.drafting.policies import BEST, Policies
from forerun.engine.trace import AnswerTrace
from forerun.planner.outcome import Outcome
from forerun.planner.simulate import Costs, simulate

# What is taken from the costs in turn, until only passes are left.
OVERHEADS: Final = (
    ("rounds", "parallel_overhead_s"),
    ("draft passes", "worker_expansion_overhead_s"),
    ("wire", "wire_s"),
)
LATENESS: Final = (0.35, 1.0, 4.0)  # of drafters that rest more or less at the end of the target's pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Decoding in which nothing but passes takes time, and the way from there to a projection.

    What is lost there too is lost to the pair and to these trees: to misses, after which the target waits for a draft
    pass, and to depth, since no more levels can be verified in a round than draft passes added.

    Args:
        outcome: of the same drafter with the same trees, without overheads and latency, with the best of some rules
            for passes that would end after the verdict and for waits after a miss.
        lost_to: tokens/s that each overhead takes, and "timing", what the drafter's own rules take, one after the
            other, so that they add up to what the projection lacks. One may be below 0: a round that is a little longer
            can hold one more draft pass.
    """

    outcome: Outcome
    lost_to: Mapping[str, float]


def bound_of(traces: Sequence[AnswerTrace], drafter: Parallel, costs: Costs, policies: Policies = BEST) -> Bound:
    """The bound of these answers, by ten simulations; exact to about 1 % for a thousand tokens.

    The drafter's own rules alone would give none: where the draft passes that end within the target's leave time for a
    part of another, a drafter may rest at the bound, and with some overhead do without the rest.

    Raises:
        ConfigError: nothing is known of the draft's passes.
    """
    found = [simulate(traces, drafter, costs, policies)]
    lost_to: dict[str, float] = {}
    for name, overhead in OVERHEADS:
        change: dict[str, Any] = {overhead: 0.0}
        costs = replace(costs, **change)
        found.append(simulate(traces, drafter, costs, policies))
        lost_to[name] = found[-1].tokens_per_s - found[-2].tokens_per_s
    without = found[-1].tokens_per_s
    found += [simulate(traces, drafter, costs, other) for other in other_rules(policies)]
    best = max(found, key=lambda outcome: outcome.tokens_per_s)
    lost_to["timing"] = best.tokens_per_s - without
    return Bound(outcome=best, lost_to=lost_to)


def other_rules(policies: Policies) -> Iterator[Policies]:
    """More or fewer draft passes end after the verdict; the target waits for one after a miss, or for more."""
    for max_lateness in LATENESS:
        for max_repairs in {1, policies.remote.max_repairs}:
            yield replace(policies, remote=replace(policies.remote, max_lateness=max_lateness, max_repairs=max_repairs))
