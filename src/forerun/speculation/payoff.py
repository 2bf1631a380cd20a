"""The gain of drafting: how many rows to verify, how many nodes to expand, and whether to draft at all.

No clock: times are passed in.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from typing import Final, Literal, get_args

from forerun.core.pace import Pace
from forerun.speculation.tree import TokenTree

SMOOTHING: Final = 0.02  # weight of the newest measurement in a running mean
FIRST_CHILDREN: Final = (0.6, 0.15, 0.05)  # prior probabilities of a node's children
FORGETTING: Final = 0.95  # factor on the weight of older rounds, per round
FIRST_ROUNDS: Final = 12  # rounds of either mode before the first comparison
MARGIN: Final = 1.03  # factor by which the other mode must be better, so that equal modes do not alternate
FIRST_STRETCH: Final = 32  # rounds without drafting before it is tried again
LONGEST_STRETCH: Final = 512
TRIAL: Final = 6  # drafting rounds of a trial
STALL: Final = 3.0  # times the mean round that one counts as at most: the widest take so long, longer is other load
TemperatureClass = Literal["greedy", "below 1", "1 and above"]
TEMPERATURE_CLASSES: Final[tuple[TemperatureClass, ...]] = get_args(TemperatureClass)


def class_of(temperature: float) -> TemperatureClass:
    """The class of temperatures within which one drafter is the fastest."""
    return "greedy" if temperature == 0.0 else "below 1" if temperature < 1.0 else "1 and above"


class WidthRule:
    """Chooses the widths of a round so that its expected tokens per second are most.

    A token that this round does not give is left to the next one, which is much like it: so a row or an expansion pays
    exactly if it raises the round's tokens per second. The long-run speed would be the wrong measure in a text with
    easy and hard stretches: no hard one can be skipped for an easy one.

    Source: OPT-Tree (arXiv 2406.17276) and Sequoia (arXiv 2402.12374) optimise a fixed tree size in advance; here each
    round is optimised separately.

    Args:
        target: seconds of a verification by its rows.
        draft: seconds of an expansion by its nodes; None: expansions run in parallel.
        round_s, expansion_s: initial seconds of a round and of an expansion beyond their passes.
    """

    def __init__(self, target: Pace, draft: Pace | None, *, round_s: float = 0.0, expansion_s: float = 0.0) -> None:
        self._target_s = [target.step_s(rows) for rows in range(1, target.steps[-1][0] + 1)]
        self.change_draft(draft)
        self._beyond_expansion_s, self._beyond_round_s, self._spent_s = expansion_s, round_s, 0.0
        self._children = list(FIRST_CHILDREN)
        self._num_rows = 1

    def change_draft(self, draft: Pace | None) -> None:
        """Replace the times of draft passes."""
        self._expansion_s = None if draft is None else cache(draft.step_s)

    @property
    def round_overhead_s(self) -> float:
        """Recent mean time of rounds beyond their passes."""
        return self._beyond_round_s

    @property
    def expansion_overhead_s(self) -> float:
        """Recent mean time of expansions beyond theirs."""
        return self._beyond_expansion_s

    def begin_round(self) -> None:
        self._spent_s = 0.0

    def end_round(self, seconds: float) -> None:
        """Take the round's total time."""
        pass_s = self._target_s[self._num_rows - 1]
        self._beyond_round_s = blend_time(self._beyond_round_s, seconds - self._spent_s - pass_s, pass_s)

    def measure_expansion(self, num_nodes: int, seconds: float) -> None:
        """Take an expansion of this round."""
        self._spent_s += seconds
        if self._expansion_s is not None:
            pass_s = self._expansion_s(num_nodes)
            self._beyond_expansion_s = blend_time(self._beyond_expansion_s, seconds - pass_s, pass_s)

    def measure_children(self, chances: Sequence[float]) -> None:
        """Take the chances, likeliest first, of an expanded node's children given the node."""
        children = self._children
        children += [0.0] * (len(chances) - len(children))
        for rank, chance in enumerate(chances):
            children[rank] = blend(children[rank], chance)

    def num_rows(self, chances: Sequence[float], most: int) -> int:
        """Rows to verify, root included.

        Args:
            chances: acceptance probability of every node, likeliest first, the root (1) included.
        """
        speeds = self._speeds(chances[:most], 0.0)
        self._num_rows = 1 + max(range(len(speeds)), key=speeds.__getitem__)
        return self._num_rows

    def num_nodes(self, frontier: Sequence[float], tree: Sequence[float], most: int) -> int:
        """Nodes to expand next, likeliest first; 0 if an expansion does not pay.

        Their likely children are put into the tree, and the fastest cut with them is compared with the fastest without:
        a child that only takes the row of another node is worth no more than the difference. A root without any guess
        is always expanded: what the expansions after it may bring is more than one step ahead.

        Args:
            frontier: chances of the nodes that could be expanded, likeliest first.
            tree: chances of all nodes, likeliest first, the root (1) included.
            most: rows that can be verified.
        """
        if self._expansion_s is None or len(tree) == 1 or not frontier:
            return len(frontier)
        speed = max(self._speeds(tree[:most], 0.0))
        nodes_s = [self._expansion_s(nodes) for nodes in range(1, len(frontier) + 1)]
        num_nodes = 1
        while num_nodes < len(frontier) and (
            frontier[num_nodes] * self._children[0] > speed * (nodes_s[num_nodes] - nodes_s[num_nodes - 1])
        ):
            num_nodes += 1
        children = [node * child for node in frontier[:num_nodes] for child in self._children]
        grown = sorted([*tree, *children], reverse=True)[:most]
        faster = max(self._speeds(grown, nodes_s[num_nodes - 1] + self._beyond_expansion_s))
        return num_nodes if faster > speed else 0

    def _speeds(self, chances: Sequence[float], extra_s: float) -> list[float]:
        """Expected tokens per second of this round by its rows, with this added time."""
        base_s = self._spent_s + self._beyond_round_s + extra_s
        return [gain / (base_s + cost_s) for gain, cost_s in zip(accumulate(chances), self._target_s, strict=False)]


def rows_to_verify(
    tree: TokenTree, most: int, rule: WidthRule | None, chances: Callable[[], Sequence[float]] | None = None
) -> TokenTree:
    """The likeliest nodes of a tree, up to a limit of rows, and fewer where the rule finds that more do not pay.

    Args:
        chances: gives the chances of the tree's likeliest nodes, where these are known without looking through it.
    """
    width = most
    if rule is not None:
        width = rule.num_rows(chances_of(tree.log_probs) if chances is None else chances(), most)
    return tree.select(tree.best(width))


def blend(mean: float, newest: float) -> float:
    """A running mean; the first value counts whole."""
    return mean + SMOOTHING * (newest - mean) if mean else newest


def blend_time(mean_s: float, newest_s: float, pass_s: float) -> float:
    """A running mean of times beyond a pass, from 0 up; each is capped at the pass, since one on a briefly busy machine
    would distort the mean for long."""
    return mean_s + SMOOTHING * (min(max(newest_s, 0.0), max(pass_s, 2.0 * mean_s)) - mean_s)


def chances_of(log_probs: Sequence[float]) -> list[float]:
    """Log-probabilities to chances, likeliest first."""
    return sorted(map(math.exp, log_probs), reverse=True)


class Payoff:
    """Chooses round by round between drafting and plain rounds, by seconds per token of both.

    Plain rounds are tried only where drafting writes more slowly than passes alone would: a draft that pays is never
    interrupted. Where it does not pay, it is tried again in ever longer intervals.

    Args:
        pass_s: seconds of a pass of one row, the least a plain token takes.
        patience: factor on the rounds before a comparison and on those that it looks at, which then needs less margin.
    """

    def __init__(self, pass_s: float, *, patience: int = 1) -> None:
        self._pass_s, self._trial, self._forgetting = pass_s, TRIAL * patience, FORGETTING ** (1.0 / patience)
        self._margin: float = MARGIN ** (1.0 / patience)
        self._drafted, self._plain = Speed(self._forgetting), Speed(self._forgetting)
        self._is_drafting, self._left = True, FIRST_ROUNDS * patience
        self._stretch = FIRST_STRETCH

    def should_draft(self) -> bool:
        return self._is_drafting

    def try_again(self) -> None:
        """Draft now, and compare after the rounds of a trial: the caller's turn to try has come before this one's."""
        if not self._is_drafting:
            self._begin_trial()

    def see_verification(self, seconds: float) -> None:
        """Record a verification's time, an upper bound of a one-row pass. The earlier measurement may be from a time
        when the machine was busy."""
        self._pass_s = min(self._pass_s, seconds)

    def measure(self, num_tokens: int, seconds: float, num_rounds: int = 1) -> None:
        """Take a round of the kind that `should_draft` asked for, or some of them together."""
        speed = self._drafted if self._is_drafting else self._plain
        speed.measure(num_tokens, seconds, num_rounds)
        self._left -= num_rounds
        if self._left <= 0:
            self._judge()

    def _judge(self) -> None:
        """At the end of a stretch of rounds of one kind, choose the kind of the next and how long it lasts."""
        if not self._is_drafting:
            self._begin_trial()
        elif self._pays():
            self._left, self._stretch = 1, FIRST_STRETCH
        else:
            self._is_drafting = False
            self._left = self._stretch if self._plain.seconds_per_token else self._trial
            self._stretch = min(2 * self._stretch, LONGEST_STRETCH) if self._plain.seconds_per_token else FIRST_STRETCH

    def _begin_trial(self) -> None:
        self._is_drafting, self._left = True, self._trial
        self._drafted = Speed(self._forgetting)  # its earlier speed says little about the text here

    def _pays(self) -> bool:
        plain_s = self._plain.seconds_per_token or self._pass_s
        return self._drafted.seconds_per_token < self._margin * plain_s


class PayoffByTemperature:
    """A payoff for each class of temperatures: what drafting brings at one says nothing of another.

    Args:
        pass_s, patience: see `Payoff`.
    """

    def __init__(self, pass_s: float, *, patience: int = 1) -> None:
        self._payoffs = {kind: Payoff(pass_s, patience=patience) for kind in TEMPERATURE_CLASSES}

    def at(self, temperature: float) -> Payoff:
        return self._payoffs[class_of(temperature)]


class Speed:
    """Seconds per token of recent rounds of one kind.

    Args:
        forgetting: factor on the weight of older rounds, per round.
    """

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self._tokens = self._seconds = self._rounds = 0.0

    @property
    def seconds_per_token(self) -> float:
        """0 before the first round."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def measure(self, num_tokens: float, seconds: float, num_rounds: float = 1) -> None:
        self.fade(self._forgetting)
        if self._rounds:
            seconds = min(seconds, STALL * num_rounds * self._seconds / self._rounds)
        self._tokens += num_tokens
        self._seconds += seconds
        self._rounds += num_rounds

    def fade(self, factor: float) -> None:
        """Let the rounds so far count for less."""
        self._tokens *= factor
        self._seconds *= factor
        self._rounds *= factor
