"""Rows of logits computed together and alone: a random tree and prefills of a model, compared bit by bit.

A row of the tree, and of a prefill, is compared with the same text run token by token, each alone.
"""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.tree import ancestry_matrix


@dataclass(slots=True)
class Tally:
    """Number of rows compared, of rows that differ and of their bits, and a description of the first difference."""

    checks: int = 0
    rows: int = 0
    bits: int = 0
    largest: float = 0.0
    first: str = ""
    by_place: dict[str, int] = field(default_factory=dict)

    def compare(self, where: str, what: str, tried: Tensor, alone: Tensor) -> None:
        """`tried` and `alone` are logits [V] of one row."""
        self.checks += 1
        self.by_place[where] = self.by_place.get(where, 0) + 1
        if torch.equal(tried, alone):
            return
        left, right = (row.float().cpu().numpy().view(np.uint32) for row in (tried, alone))
        self.rows += 1
        self.bits += int(np.unpackbits((left ^ right).view(np.uint8)).sum())
        self.largest = max(self.largest, float((tried - alone).abs().max()))
        self.first = self.first or f"{where}: {what}"


def play(
    runner: Runner, rng: random.Random, tally: Tally, *, length: int, num_rows: int, most_prefill: int,
    alone_in: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> None:  # fmt: skip
    """Run a random text and a random tree after it; then run the tree's rows along their paths, on a new text pass.

    Args:
        alone_in: the circumstances in which rows run alone, such as one thread.
    """
    vocab_size = runner.spec.vocab_size
    text = [rng.randrange(vocab_size) for _ in range(length)]
    is_bushy = rng.random() < 0.5
    nodes = range(1, num_rows)
    parents = [-1, *(rng.randrange(node) if is_bushy else max(0, node - rng.randint(1, 3)) for node in nodes)]
    tokens = [rng.randrange(vocab_size) for _ in range(num_rows)]
    what = f"text of {length}, parents {parents}"
    runner.forget()
    runner.sync(text)
    in_tree = run_tree(runner, tokens, parents)
    with alone_in():
        runner.forget()
        alone = run_alone(runner, text, tokens, parents)
    for node in range(num_rows):
        tally.compare("tree", f"{what}, node {node}", in_tree[node], alone[node])
    path = path_of(parents, rng.randrange(num_rows))
    num_more = min(len(text), rng.randrange(most_prefill - len(path)))
    compare_prefills(
        runner, tally, text, [tokens[node] for node in path], [alone[node] for node in path], what, num_more
    )


def path_of(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def run_tree(runner: Runner, tokens: list[int], parents: list[int]) -> Tensor:
    """Logits of every node; the cache is restored."""
    start = runner.cache.committed_len
    ancestry = ancestry_matrix(parents)
    logits = runner.forward(
        ForwardInput(
            token_ids=tokens,
            positions=[start + int(row.sum()) - 1 for row in ancestry],
            first_slot=runner.cache.reserve(len(tokens)),
            prefix_len=start,
            ancestry=ancestry,
            num_logit_rows=len(tokens),
        )
    ).logits
    runner.cache.truncate(start)
    return logits


def run_alone(runner: Runner, text: list[int], tokens: list[int], parents: list[int]) -> list[Tensor]:
    """Logits of every node, each run alone after its own path, depth first."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    logits: dict[int, Tensor] = {}
    waiting = list(children[-1])
    while waiting:
        node = waiting.pop()
        path = path_of(parents, node)
        runner.sync([*text, *(tokens[place] for place in path[:-1])])
        logits[node] = runner.extend([tokens[node]], num_logit_rows=1)[0]
        waiting += children.get(node, [])
    return [logits[node] for node in range(len(parents))]


def compare_prefills(
    runner: Runner, tally: Tally, text: list[int], path: list[int], alone: list[Tensor], what: str, num_more: int
) -> None:
    """The path in one pass behind the text; then with the last `num_more` tokens of the text before it, a wide pass."""
    runner.sync(text)
    for row, logits in enumerate(runner.extend(path, num_logit_rows=len(path))):
        tally.compare("narrow prefill", f"{what}, row {row}", logits, alone[row])
    whole = [*text[len(text) - num_more :], *path]
    runner.sync(text[: len(text) - num_more])
    for row, logits in enumerate(runner.extend(whole, num_logit_rows=len(path))):
        tally.compare("wide prefill", f"{what}, {num_more} before, row {row}", logits, alone[row])
