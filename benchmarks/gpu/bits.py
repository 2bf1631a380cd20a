"""Do rows keep their bits on this device? Random texts and trees through models of real widths.

A row of a random tree, and of a prefill, against the same text run token by token, each alone.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.cases import Case, Row, Setting
from benchmarks.gpu.layers import FEW_TOKENS
from benchmarks.gpu.models import Model, models
from benchmarks.gpu.passes import runner_of
from forerun.model.inputs import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.ancestry import ancestry_matrix

MODELS = ("1b bf16", "8b bf16", "8b int4", "70b int4", "qwen2-7b bf16")
CHECKS = 5000  # in all
CAPACITY = 1536
BORDERS = (0, 1, 127, 128, 129, 255, 256, 257, 383, 512, 700, 1023)  # lengths of texts, about those of splits
MOST_ROWS, MOST_PREFILL = 32, 256
REHEARSED_PREFILL = 40


@dataclass(slots=True)
class Tally:
    """Rows compared, rows that differ and by how many bits, and what the first of them was."""

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


def cases(setting: Setting) -> Iterator[Case]:
    chosen = models(setting, *MODELS[: 1 if setting.is_rehearsal else 2 if setting.is_quick else None])
    for model in chosen:
        for num_layers in (1, 2):
            number = CHECKS // (2 * len(chosen)) + 1
            yield Case(
                name=f"{model}, layers: {num_layers}",
                run=partial(check, model, num_layers, 4 if setting.is_rehearsal else number, setting),
                warm=partial(warm_up, model, setting) if num_layers == 1 else None,
            )


def small(model: Model, num_layers: int) -> Model:
    """As wide as the model, with few layers and tokens."""
    spec = replace(model.spec, num_layers=num_layers, vocab_size=min(model.spec.vocab_size, 8 * FEW_TOKENS))
    return replace(model, spec=spec)


def warm_up(model: Model, setting: Setting) -> None:
    runner, tally = runner_of(small(model, 2), setting, capacity=CAPACITY), Tally()
    for number in range(1 if setting.is_rehearsal else 6):
        play(runner, random.Random(number), tally, setting)


@torch.inference_mode()
def check(model: Model, num_layers: int, num_checks: int, setting: Setting) -> Iterator[Row]:
    runner, tally = runner_of(small(model, num_layers), setting, capacity=CAPACITY), Tally()
    rng = random.Random(f"{model} {num_layers}")
    trials = 0
    while tally.checks < num_checks and setting.left_s > 0:
        play(runner, rng, tally, setting)
        trials += 1
    yield {
        "model": str(model), "layers": num_layers, "trials": trials, "checks": tally.checks,
        "different_rows": tally.rows, "different_bits": tally.bits, "largest_difference": tally.largest,
        "first_difference": tally.first, "by_place": tally.by_place,
    }  # fmt: skip


def play(runner: Runner, rng: random.Random, tally: Tally, setting: Setting) -> None:
    """A random text, behind it a random tree; then the rows of the tree along their paths."""
    length = rng.choice((4, 36)) if setting.is_rehearsal else max(1, rng.choice(BORDERS) + rng.randrange(-2, 12))
    num_rows = rng.randint(2, 4 if setting.is_rehearsal else MOST_ROWS)
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
    alone = run_alone(runner, text, tokens, parents)
    for node in range(num_rows):
        tally.compare("tree", f"{what}, node {node}", in_tree[node], alone[node])
    leaf = rng.randrange(num_rows)
    path = path_of(parents, leaf)
    most = REHEARSED_PREFILL if setting.is_rehearsal else MOST_PREFILL
    num_more = min(len(text), rng.randrange(most - len(path)))
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
    """Logits of every node; the cache is then as before."""
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
    )
    runner.cache.truncate(start)
    return logits


def run_alone(runner: Runner, text: list[int], tokens: list[int], parents: list[int]) -> list[Tensor]:
    """Logits of every node, each run alone behind its own path, depth first."""
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
