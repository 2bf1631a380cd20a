"""Tokens per round of every drafter in a trace, with trees of the drafter's usual size, whatever a round costs."""

from collections.abc import Sequence
from typing import Final

from forerun.core.drafter_config import WITHOUT_MODEL, DraftModel, LayerSkip
from forerun.drafting.policies import BEST_SKIPS
from forerun_lab.planner.simulate import simulate
from forerun_lab.planner.synthetic import FREE
from forerun_lab.planner.trace import DRAFT_MODEL, LAYER_SKIP, AnswerTrace

MODELS_TREE: Final = DraftModel(adaptive=False)
SKIPPING: Final = LayerSkip()
SKIPS_TREE: Final = DraftModel(
    verify_width=SKIPPING.verify_width, draft_width=BEST_SKIPS.draft_width, depth=SKIPPING.depth, adaptive=False
)


def tokens_per_round(traces: Sequence[AnswerTrace]) -> dict[str, tuple[int, float]]:
    """By name of each recorded drafter: the rows of its proposals, and tokens per round with the bonus token.

    Trees of a draft model and of skipped layers are simulated from their guesses, as in `forerun plan`.
    """
    found: dict[str, tuple[int, float]] = {}
    skipping = [trace.by_layer_skip() for trace in traces if trace.skip_children]
    for name, of_trees, tree in ((DRAFT_MODEL, traces, MODELS_TREE), (LAYER_SKIP, skipping, SKIPS_TREE)):
        if any(any(trace.children) for trace in of_trees):
            found[name] = tree.verify_width, simulate(of_trees, tree, FREE).tokens_per_round
    for name, config in WITHOUT_MODEL.items():
        counts = [trace.accepted[name] for trace in traces if name in trace.accepted]
        if counts:
            found[name] = config.verify_width, sum(map(len, counts)) / sum(map(rounds_in_sequence, counts))
    return found


def rounds_in_sequence(accepted: Sequence[int]) -> int:
    """The rounds of an answer, each of which begins where the one before it ends.

    Args:
        accepted: for each token, the tokens that a round accepts which begins there.
    """
    place = num_rounds = 0
    while place < len(accepted):
        place += accepted[place] + 1
        num_rounds += 1
    return num_rounds
