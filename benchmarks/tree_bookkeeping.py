"""Python time of one round's tree work: grow, cut, mask, walk; 8 rows a forward, 5 forwards. No model runs."""

import random
from statistics import median
from time import perf_counter

from common import standard_arguments, write_results

from forerun.speculation.ancestry import ancestry_matrix
from forerun.speculation.growth import BestFirstGrowth
from forerun.speculation.walk import walk

WIDTH, DEPTH, CHILDREN = 8, 5, 4


def guesses(rng: random.Random, num_rounds: int) -> list[list[tuple[list[int], list[float]]]]:
    """Children of every expansion, drawn beforehand: the model's part of the work."""

    def one() -> tuple[list[int], list[float]]:
        return rng.sample(range(4096), CHILDREN), sorted((-rng.expovariate(0.7) for _ in range(CHILDREN)), reverse=True)

    return [[one() for _ in range(WIDTH * DEPTH)] for _ in range(num_rounds)]


def play_round(children: list[tuple[list[int], list[float]]]) -> int:
    growth = BestFirstGrowth(7, horizon=WIDTH, draft_width=WIDTH)
    supply = iter(children)
    for _ in range(DEPTH):
        batch = growth.next_batch()
        if not batch:
            break
        for node in batch:
            growth.add_children(node, *next(supply))
    tree = growth.tree.select(growth.cut(WIDTH))
    ancestry_matrix(tree.parents)
    choices = [tree.token_ids[min(node + 1, len(tree) - 1)] for node in range(len(tree))]
    return len(walk(tree, choices).tokens)


def main() -> None:
    arguments = standard_arguments(__doc__, "tree_bookkeeping").parse_args()
    times = []
    for children in guesses(random.Random(0), 3000):
        began = perf_counter()
        play_round(children)
        times.append(1e6 * (perf_counter() - began))
    times.sort()
    row = {
        "verify x depth": f"{WIDTH}x{DEPTH}",
        "median us": f"{median(times):.1f}",
        "p10 us": f"{times[300]:.1f}",
        "p90 us": f"{times[2700]:.1f}",
    }
    write_results(
        arguments,
        "Tree bookkeeping of one round",
        [row],
        ["3,000 rounds on random guesses, one thread, children drawn beforehand."],
    )


if __name__ == "__main__":
    main()
