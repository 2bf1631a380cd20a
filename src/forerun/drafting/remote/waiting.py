"""When a drafter in another process expands and answers, and how long the target waits for it.

This stays apart from the referee: it decides about time between two processes, not about rows.

The numbers were chosen by hand; only the rule of `wait_s` was measured (docs/log.md). Callers pass in times.
"""

import math
from collections.abc import Iterable
from typing import Final

from forerun.speculation.referee.costs import blend
from forerun.speculation.tree import TokenTree

NEWEST: Final = 0.2  # weight of the newest measurement in a running mean; the last three have half the weight
FLOOR_S: Final = 0.005  # the shortest wait, in seconds, because of scheduling noise on a busy machine
RESPONSE_FACTOR: Final = 4.0  # the longest wait as a multiple of the drafter's usual response time
STEP_FACTOR: Final = 2.0  # the longest wait as a multiple of the target's step, unless FLOOR_S is longer
FIRST_GAIN: Final = 1.0  # initial estimate of accepted tokens per awaited answer
RECOVERY: Final = 0.02  # each round without a wait moves the gain this share of the way back to FIRST_GAIN
TREES_PER_CUT: Final = 16  # nodes that a drafter keeps and sends, as a multiple of `verify_width`
COVERAGE: Final = 0.6  # the share of an expanded node's probability that its kept children have
SEND_WITHIN: Final = 1.25  # a tree is sent ahead if the verdict is due within this many expansions: one, and a reserve


class WaitPolicy:
    """Decides by running means of one drafter's speed and gain; all times in seconds.

    A deadline is a multiple of measured times, so a drafter on a busy machine counts as slow, not as failed. After one
    missed deadline there are no waits until a proposal arrives in time without one, so a stopped drafter costs only
    one wait.
    """

    def __init__(self) -> None:
        self.step_s = 0.0  # the target's time for one proposal
        self.response_s = 0.0  # time from a verdict to its awaited answer
        self.gain = FIRST_GAIN  # accepted tokens per answer when there was nothing else to verify
        self.is_late = False

    def measure_step(self, elapsed_s: float) -> None:
        """Record how long the target took for a round."""
        self.step_s = blend(self.step_s, elapsed_s, NEWEST)

    def measure_response(self, elapsed_s: float) -> None:
        """Record how long the drafter took to answer."""
        self.response_s = blend(self.response_s, elapsed_s, NEWEST)

    def miss_deadline(self, waited_s: float) -> None:
        """Record a missed deadline: raise the estimated response time and stop waiting."""
        self.is_late = True
        self.measure_response(max(self.response_s, 2.0 * waited_s))

    def measure_gain(self, num_accepted: int) -> None:
        """Record the accepted tokens of an awaited answer when there was nothing else to verify."""
        self.gain = blend(self.gain, num_accepted, NEWEST)

    def wait_s(self, num_expected: float, expansion_gain: float) -> float:
        """How long to wait for an answer before verifying the current tree.

        Args:
            num_expected: expected tokens of the current tree, without the bonus token.
            expansion_gain: expected tokens that the next expansion adds to the proposal; 1 without a tree.

        A wait of r before a step of t pays off if (1 + num_expected + gain * expansion_gain) / (t + r) exceeds
        (1 + num_expected) / t.
        """
        if self.is_late:
            return 0.0
        if self.response_s * (1.0 + num_expected) > self.step_s * self.gain * expansion_gain:
            # Without this, a series of low gains would end all waits.
            self.gain += RECOVERY * (FIRST_GAIN - self.gain)
            return 0.0
        return max(FLOOR_S, min(RESPONSE_FACTOR * self.response_s or math.inf, STEP_FACTOR * self.step_s))


def repair_pays(tree: TokenTree, verify_width: int, draft_width: int, *, step_s: float, expansion_s: float) -> bool:
    """Whether the target should wait for one more expansion: it adds more expected tokens than the target would
    generate in that time."""
    gain = expansion_gain(tree, verify_width, draft_width, coverage=COVERAGE)
    return gain * step_s > (1.0 + expected_tokens(tree, verify_width)) * expansion_s


def expected_tokens(tree: TokenTree, width: int) -> float:
    """Expected accepted tokens of the `width` likeliest nodes, by the tree's probabilities, without the root."""
    return math.fsum(likeliest(tree.log_probs[1:], width - 1))


def expansion_gain(tree: TokenTree, verify_width: int, draft_width: int, *, coverage: float = 1.0) -> float:
    """The expected accepted tokens that an expansion adds to a proposal: those of the new children minus those of the
    nodes whose rows they would take.

    Args:
        verify_width: rows of a proposal.
        draft_width: nodes of an expansion, which are the tree's likeliest leaves.
        coverage: the share of a node's probability that its children have.
    """
    inner = set(tree.parents)
    leaves = likeliest([value for node, value in enumerate(tree.log_probs) if node not in inner], draft_width)
    rows = likeliest(tree.log_probs[1:], verify_width - 1)
    rows += [0.0] * (verify_width - 1 - len(rows))
    return math.fsum(max(0.0, coverage * leaf - row) for leaf, row in zip(leaves, reversed(rows), strict=False))


def likeliest(log_probs: Iterable[float], number: int) -> list[float]:
    """The largest of these probabilities, likeliest first."""
    return [math.exp(log_prob) for log_prob in sorted(log_probs, reverse=True)[:number]]
