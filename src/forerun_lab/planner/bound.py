"""The highest speed that a parallel drafter can reach with a pair of models, and the losses that explain the gap."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from forerun.core.drafter_config import Parallel
from forerun.drafting.policies import BEST, Policies
from forerun_lab.planner.outcome import Outcome
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.trace import AnswerTrace

# Overheads that are set to 0 one after another, until only the passes cost time.
OVERHEADS: Final = (
    ("rounds", "parallel_overhead_s"),
    ("draft passes", "worker_expansion_overhead_s"),
    ("wire", "wire_s"),
)
LATENESS: Final = (0.35, 1.0, 4.0)  # of drafters that idle more or less at the end of the target's pass
NUM_SIMULATIONS: Final = 1 + len(OVERHEADS) + 2 * len(LATENESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The outcome if only passes took time, and how much each overhead lowers it to the projection.

    The bound still includes losses due to the pair and the trees: misses, after which the target waits for a draft
    pass, and depth, because a round can verify no more levels than its draft passes added.

    Args:
        outcome: of the same drafter with the same trees, without overheads and latency, with the best of several rules
            for passes that would end after the verdict and for waits after a miss.
        lost_to: tokens/s lost to each overhead, and to the drafter's own rules ("timing"). They are removed one after
            another, so the losses add up to the gap. One may be negative, because a slightly longer round can hold one
            more draft pass.
    """

    outcome: Outcome
    lost_to: Mapping[str, float]


def bound_of(
    traces: Sequence[AnswerTrace],
    drafter: Parallel,
    costs: Costs,
    policies: Policies = BEST,
    *,
    projected: Outcome | None = None,
    on_simulation: Callable[[], None] = lambda: None,
) -> Bound:
    """The bound of these answers, by at most `NUM_SIMULATIONS` simulations; exact to about 1 % for a thousand tokens.

    The drafter's own rules alone give no upper bound: without overheads a drafter may idle at the end of the target's
    pass, if the time left is too short for another draft pass, while with some overhead it does not idle.

    Args:
        projected: the outcome with these costs and policies, if it is known.
        on_simulation: called after each simulation.

    Raises:
        ConfigError: the times of the draft's passes are not known.
    """

    def play(costs: Costs, policies: Policies) -> Outcome:
        outcome = simulate(traces, drafter, costs, policies)
        on_simulation()
        return outcome

    found = [projected or play(costs, policies)]
    lost_to: dict[str, float] = {}
    for name, overhead in OVERHEADS:
        change: dict[str, Any] = {overhead: 0.0}
        cheaper = replace(costs, **change)
        found.append(found[-1] if cheaper == costs else play(cheaper, policies))
        costs = cheaper
        lost_to[name] = found[-1].tokens_per_s - found[-2].tokens_per_s
    without = found[-1].tokens_per_s
    found += [play(costs, other) for other in other_rules(policies)]
    best = max(found, key=lambda outcome: outcome.tokens_per_s)
    lost_to["timing"] = best.tokens_per_s - without
    return Bound(outcome=best, lost_to=lost_to)


def other_rules(policies: Policies) -> Iterator[Policies]:
    """Policies with more or fewer draft passes that end after the verdict, and with one or more waits after a miss."""
    for max_lateness in LATENESS:
        for max_repairs in {1, policies.remote.max_repairs}:
            yield replace(policies, remote=replace(policies.remote, max_lateness=max_lateness, max_repairs=max_repairs))
