"""SwiftSpec's own two schemes, with a fixed number of expansions a round, to compare with its published figures.

No lookup, no calibration, no early end, and in the parallel scheme a barrier each round, where both sides wait for each
other.
Source: SwiftSpec, arXiv 2506.11309, algorithm 1; its serial baseline is SpecExec, arXiv 2406.02532.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from forerun.core.config import SamplingParams
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.tree_policy import TreePolicy
from forerun.engine.trace import AnswerTrace
from forerun.planner.outcome import AnswerOutcome, Outcome, Tally
from forerun.planner.simulate import Costs
from forerun.planner.trace_grower import TraceGrower
from forerun.speculation.tree import TokenTree

HORIZON: Final = 64  # a tree that is kept is kept so many times wider than a cut: wider than its rounds reach
UNBOUNDED: Final = 1 << 30
PARAMS: Final = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A fixed schedule.

    Args:
        kind: "serial" drafts, then verifies; "parallel" does both at once.
        verify_width: rows of the target's pass, root included.
        draft_width: nodes of an expansion.
        depth: expansions in every round.
    """

    kind: Literal["serial", "parallel"]
    verify_width: int = 8
    draft_width: int = 8
    depth: int = 5


def play_scheme(traces: Sequence[AnswerTrace], scheme: Scheme, costs: Costs) -> Outcome:
    """The answers of these traces, as this scheme would have written them."""
    play = play_serial if scheme.kind == "serial" else play_parallel
    return Outcome(answers=tuple(play(trace, scheme, costs) for trace in traces))


def play_serial(trace: AnswerTrace, scheme: Scheme, costs: Costs) -> AnswerOutcome:
    """round = depth * draft + target + overhead"""
    tally = Tally(trace)
    grower = begin(trace, scheme, tally, keeps_subtree=False)
    while tally.num_left:
        expand(grower, scheme.depth)
        tree = cut(grower, scheme)
        pass_s = costs.target.step_s(len(tree))
        acceptance = tally.verify(tree, pass_s)
        tally.add(acceptance, is_hit=grower.advance(acceptance.tokens))
        tally.outcome.decode_s += (
            scheme.depth * costs.expansion_s(scheme.draft_width) + pass_s + costs.serial_overhead_s
        )
    return tally.outcome


def play_parallel(trace: AnswerTrace, scheme: Scheme, costs: Costs) -> AnswerOutcome:
    """round = max(target, depth * draft) + overhead + expansions until the tree fills a cut again

    A landing on a node that was never expanded counts as a miss like one outside the tree: nothing can be kept.
    """
    tally = Tally(trace)
    grower = begin(trace, scheme, tally, keeps_subtree=True)
    expand(grower, scheme.depth)
    expansion_s = costs.worker_expansion_s(scheme.draft_width)
    while tally.num_left:
        tree = cut(grower, scheme)
        expand(grower, scheme.depth)
        pass_s = costs.target.step_s(len(tree))
        acceptance = tally.verify(tree, pass_s)
        is_hit = grower.advance(acceptance.tokens) and grower.is_rooted
        tally.add(acceptance, is_hit=is_hit)
        num_repairs = refill(grower, scheme)
        tally.outcome.decode_s += max(pass_s, scheme.depth * expansion_s)
        tally.outcome.decode_s += costs.parallel_overhead_s + num_repairs * expansion_s
    return tally.outcome


def begin(trace: AnswerTrace, scheme: Scheme, tally: Tally, *, keeps_subtree: bool) -> TraceGrower:
    """A grower at the end of the prompt; its passes are charged by the scheme."""
    num_children = max(len(ids) for ids in trace.children)
    guessed = GuessedTree(
        TreePolicy(num_children=num_children, min_mass=0.0, looks_up=False),
        verify_width=scheme.verify_width,
        draft_width=scheme.draft_width,
        horizon=scheme.verify_width * (HORIZON if keeps_subtree else 1),
        keeps_subtree=keeps_subtree,
    )
    grower = TraceGrower(guessed, max_rows=UNBOUNDED, spend=lambda _: 0.0)
    grower.expect(trace, tally.outcome)
    grower.begin(trace.prompt_ids, PARAMS, None)
    return grower


def expand(grower: TraceGrower, num_expansions: int) -> None:
    for _ in range(num_expansions):
        grower.expand()


def refill(grower: TraceGrower, scheme: Scheme) -> int:
    """Expand until there are enough nodes for a cut; return how often."""
    num_repairs = 0
    while len(grower.tree) < scheme.verify_width and grower.expand():
        num_repairs += 1
    return num_repairs


def cut(grower: TraceGrower, scheme: Scheme) -> TokenTree:
    tree = grower.tree
    return tree.select(tree.best(scheme.verify_width))
