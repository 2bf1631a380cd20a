"""Search for the fastest way to decode with a pair of models: how to divide the units, and which tree to use."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from forerun.core.drafter_config import DrafterConfig, DraftModel, NoDrafter, Parallel
from forerun.core.errors import ConfigError
from forerun.core.optional_packages import install_command
from forerun.drafting.policies import Policies, RemotePolicy, TreePolicy
from forerun_lab.planner.bound import NUM_SIMULATIONS as NUM_BOUNDING
from forerun_lab.planner.bound import Bound, bound_of
from forerun_lab.planner.outcome import Outcome
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.simulate import Costs, simulate
from forerun_lab.planner.trace import AnswerTrace

OnPlan = Callable[[int, int], None]  # simulations done, about how many in all

COARSE_TOKENS: Final = 512  # of the traces, for the search; the results are then simulated on all tokens
NUM_CLIMBED: Final = 3  # parallel splits for which trees are searched
CLIMB_STEPS: Final = 12  # approximate number of simulations in such a search
USUAL_WIDTH: Final = 8
USUAL_DEPTH: Final = 6
VERIFY_WIDTHS: Final = (4, 8, 12, 16, 24, 32)
DRAFT_WIDTHS: Final = (4, 8, 16, 32)
DEPTHS: Final = (2, 3, 4, 6, 8, 12)
COLOURS: Final = {"serial": "#8c8c8c", "parallel": "#2a6f97", "plain": "#d0d0d0"}
INCHES: Final = (8.0, 4.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The units of target and draft; a serial drafter shares all units with the target."""

    target_units: int
    draft_units: int
    is_parallel: bool

    @property
    def name(self) -> str:
        return f"{self.target_units}+{self.draft_units}" if self.is_parallel else f"{self.target_units} shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A split with a drafter, and the outcome of its simulation.

    Args:
        bound: given only for the fastest parallel plan.
    """

    split: Split
    drafter: DrafterConfig
    outcome: Outcome
    bound: Bound | None = None

    @property
    def kind(self) -> str:
        match self.drafter:
            case Parallel():
                return "parallel"
            case DraftModel():
                return "serial"
            case _:
                return "plain"

    @property
    def tree(self) -> DraftModel | None:
        """The shape of the drafter's tree."""
        match self.drafter:
            case Parallel(draft=DraftModel() as draft) | (DraftModel() as draft):
                return draft
            case _:
                return None


def search(
    profile: Profile,
    traces: Sequence[AnswerTrace],
    *,
    units: int | None = None,
    lookup: bool = True,
    has_bound: bool = True,
    on_plan: OnPlan = lambda done, total: None,
) -> list[Plan]:
    """The best plan of every split, fastest first; a serial split has one plan with adaptive and one with fixed widths.

    Every split is tried with a default tree on a part of the traces. For the fastest of these, better trees are found
    by hill climbing. Then the best plan of each split is simulated on all traces.

    Args:
        units: number of units to divide; None: the most that the profile has for the target.
        lookup: whether drafters also use prompt lookup.
        has_bound: whether the fastest parallel plan gets its bound, which takes a quarter of the time.

    Raises:
        ConfigError: the profile lacks the times of these units.
    """
    units = max(profile.target) if units is None else units
    splits = splits_of(profile, units)
    usual = [(split, drafter) for split in splits for drafter in usual_drafters(split)]
    player = Player(
        profile=profile,
        policies=Policies(tree=TreePolicy(looks_up=lookup), remote=RemotePolicy(looks_up=lookup)),
        on_plan=on_plan,
        num_expected=2 * len(usual) + CLIMB_STEPS * (NUM_CLIMBED + 2) + NUM_BOUNDING * has_bound,
    )
    part = first_tokens(traces, COARSE_TOKENS)
    coarse = [player.play(part, split, drafter) for split, drafter in usual]
    ranked = sorted((plan for plan in coarse if plan.split.is_parallel), key=speed_of, reverse=True)
    worth = [plan for plan in coarse if not plan.split.is_parallel] + ranked[:NUM_CLIMBED]
    tuned = [climb(player, part, plan) if plan in worth else plan for plan in coarse]
    whole = [player.play(traces, plan.split, plan.drafter) for plan in tuned]
    whole.append(player.play(traces, plain_split(splits), NoDrafter()))
    whole.sort(key=speed_of, reverse=True)
    for place, plan in enumerate(whole):
        if has_bound and isinstance(plan.drafter, Parallel):
            bound = bound_of(
                traces,
                plan.drafter,
                player.costs_of(plan.split),
                player.policies,
                projected=plan.outcome,
                on_simulation=player.count,
            )
            whole[place] = replace(plan, bound=bound)
            break
    return whole


@dataclass(slots=True, kw_only=True)
class Player:
    """Simulates plans and reports its progress."""

    profile: Profile
    policies: Policies
    on_plan: OnPlan
    num_expected: int
    num_done: int = 0

    def play(self, traces: Sequence[AnswerTrace], split: Split, drafter: DrafterConfig) -> Plan:
        outcome = simulate(traces, drafter, self.costs_of(split), self.policies)
        self.count()
        return Plan(split=split, drafter=drafter, outcome=outcome)

    def count(self) -> None:
        """Report one more simulation."""
        self.num_done += 1
        self.on_plan(self.num_done, max(self.num_done, self.num_expected))

    def costs_of(self, split: Split) -> Costs:
        return Costs.of(self.profile, target_units=split.target_units, draft_units=split.draft_units)


def splits_of(profile: Profile, units: int) -> list[Split]:
    """All splits that the profile has times for: shared units, and every division, uneven ones too.

    With shared units, the draft runs on as many of them as make it fastest.

    Raises:
        ConfigError: there is no such split.
    """
    if not profile.draft:
        raise ConfigError("the profile has no times of a draft: make one of a target and a draft")
    splits = [
        Split(target_units=units - draft_units, draft_units=draft_units, is_parallel=True)
        for draft_units in range(1, units)
        if units - draft_units in profile.target and draft_units in profile.draft
    ]
    shared = [draft_units for draft_units in sorted(profile.draft, reverse=True) if draft_units <= units]
    if units in profile.target and shared:
        fastest = min(shared, key=lambda draft_units: profile.draft[draft_units].step_s(USUAL_WIDTH))
        splits.insert(0, Split(target_units=units, draft_units=fastest, is_parallel=False))
    if not splits:
        known = [", ".join(map(str, sorted(paces))) for paces in (profile.target, profile.draft)]
        raise ConfigError(
            f"{units} {profile.unit}s cannot be divided: the profile has the target on {known[0]} and the draft on "
            f"{known[1]}"
        )
    return splits


def plain_split(splits: Sequence[Split]) -> Split:
    """The split of drafter `none`: the most units that the target has times for."""
    most = max(split.target_units for split in splits)
    return Split(target_units=most, draft_units=splits[0].draft_units, is_parallel=False)


def usual_drafters(split: Split) -> list[DrafterConfig]:
    """The first drafters that are tried for a split: the defaults, and the default tree with fixed widths."""
    fixed = DraftModel(verify_width=USUAL_WIDTH, draft_width=USUAL_WIDTH, depth=USUAL_DEPTH, adaptive=False)
    return [Parallel(draft=fixed)] if split.is_parallel else [DraftModel(), fixed]


def climb(player: Player, traces: Sequence[AnswerTrace], plan: Plan) -> Plan:
    """Hill climbing: change one parameter of the tree at a time, up or down, while that helps."""
    best = plan
    tried = {plan.tree}
    improves = True
    while improves:
        improves = False
        for drafter in neighbours(best.drafter):
            other = Plan(split=best.split, drafter=drafter, outcome=best.outcome).tree
            if other in tried:
                continue
            tried.add(other)
            plan = player.play(traces, best.split, drafter)
            if speed_of(plan) > speed_of(best):
                best = plan
                improves = True
                break
    return best


def neighbours(drafter: DrafterConfig) -> Iterator[DrafterConfig]:
    """The same drafter with one parameter of its tree changed by a step."""
    match drafter:
        case Parallel(draft=DraftModel() as tree):
            for draft in neighbouring_trees(tree, has_depth=False):
                yield replace(drafter, draft=draft)
        case DraftModel():
            yield from neighbouring_trees(drafter, has_depth=True)
        case _:
            return


def neighbouring_trees(draft: DraftModel, *, has_depth: bool) -> Iterator[DraftModel]:
    ladders = {"verify_width": VERIFY_WIDTHS, "draft_width": DRAFT_WIDTHS} | ({"depth": DEPTHS} if has_depth else {})
    for name, ladder in ladders.items():
        place = ladder.index(getattr(draft, name))
        for step in (place + 1, place - 1):
            if 0 <= step < len(ladder):
                change: dict[str, Any] = {name: ladder[step]}
                yield replace(draft, **change)


def first_tokens(traces: Sequence[AnswerTrace], num_tokens: int) -> list[AnswerTrace]:
    """Whole answers, until they hold `num_tokens` tokens."""
    taken: list[AnswerTrace] = []
    for trace in traces:
        taken.append(trace)
        num_tokens -= len(trace.token_ids)
        if num_tokens <= 0:
            break
    return taken


def speed_of(plan: Plan) -> float:
    return plan.outcome.tokens_per_s


def draw_plans(path: Path, plans: Sequence[Plan], *, title: str) -> None:
    """Plot a bar with its interval for every split, and write it to a file whose suffix is the format.

    Raises:
        ConfigError: matplotlib is not installed, the format is unknown, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # optional, and slow to import
    except ImportError as error:
        raise ConfigError(f"a plot needs matplotlib ({error}): {install_command('matplotlib')}") from error
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.add_subplot()
    ordered = sorted(plans, key=order_of)
    speeds = [plan.outcome.tokens_per_s for plan in ordered]
    ends = [plan.outcome.interval() for plan in ordered]
    below = [max(0.0, speed - low) for speed, (low, _) in zip(speeds, ends, strict=True)]
    above = [max(0.0, high - speed) for speed, (_, high) in zip(speeds, ends, strict=True)]
    axes.bar(
        range(len(ordered)), speeds, yerr=(below, above), capsize=3, color=[COLOURS[plan.kind] for plan in ordered]
    )
    axes.set_xticks(range(len(ordered)), [label_of(plan) for plan in ordered])
    axes.set_ylabel("tokens/s")
    axes.set_title(title, fontsize="medium")
    axes.spines[["top", "right"]].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be written ({reason}): name a file like plan.svg") from error


def order_of(plan: Plan) -> tuple[int, int, bool]:
    """Plain, serial with fixed widths first, then parallel by the target's units."""
    return ("plain", "serial", "parallel").index(plan.kind), plan.split.target_units, is_adaptive(plan)


def label_of(plan: Plan) -> str:
    if plan.kind == "plain":
        return "none"
    return f"{plan.kind}{', adaptive' if is_adaptive(plan) else ''}\n{plan.split.name}"


def is_adaptive(plan: Plan) -> bool:
    return plan.tree is not None and plan.tree.adaptive
