"""Rows that leave out sublayers of their own: against a dense formula, and against passes that leave them out whole."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.backends.cpu.backend import CpuBackend
from forerun.core.model_spec import ModelSpec
from forerun.core.sublayers import NOTHING, SkipSet, all_sublayers
from forerun.model.backend import ModelBackend
from forerun.model.executor import ForwardInput
from forerun.model.runner import Runner
from forerun.speculation.tree import ancestry_matrix
from tests.backends.torch.ops import random_parents
from tests.dense_reference import normalise, rope_angles, turn
from tests.marks import rest_slow
from tests.model.kernel_sets import EXACT_SETS, KERNEL_SETS
from tests.tiny import plain_spec, random_weights, tiny_runner, tiny_spec

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
KERNELS = pytest.mark.parametrize("kernels", KERNEL_SETS)
EXACT_KERNELS = pytest.mark.parametrize("kernels", EXACT_SETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Rows behind the first `start` tokens of a text: the target's own tree, or a candidate, a chain that skips."""

    start: int
    token_ids: list[int]
    parents: list[int]
    skipped: SkipSet = NOTHING


def random_skip_set(rng: random.Random, spec: ModelSpec) -> SkipSet:
    share = rng.choice([0.0, 0.5, 0.5, 1.0])
    return frozenset(sublayer for sublayer in all_sublayers(spec.num_layers) if rng.random() < share)


class Case:
    """A model, a text, a tree behind it, and candidates that begin at its end or not long before."""

    def __init__(
        self,
        seed: int,
        dtype: torch.dtype,
        *,
        spec: ModelSpec | None = None,
        num_text: int | None = None,
        num_candidates: int | None = None,
    ) -> None:
        self.rng = rng = random.Random(seed)
        self.spec = spec = spec or tiny_spec(rng)
        self.weights = random_weights(spec, torch.Generator().manual_seed(seed), dtype=dtype)
        self.text = self._ids(rng.randint(0, 40) if num_text is None else num_text)
        parents = random_parents(rng, rng.randint(1, 8))
        self.tree = Branch(start=len(self.text), token_ids=self._ids(len(parents)), parents=parents)
        self.candidates = [self._candidate() for _ in range(num_candidates or rng.randint(1, 6))]

    def _ids(self, num: int) -> list[int]:
        return [self.rng.randrange(self.spec.vocab_size) for _ in range(num)]

    def _candidate(self) -> Branch:
        length = self.rng.choice([1, 1, 1, 2, 4])
        return Branch(
            start=self.rng.randint(max(0, len(self.text) - 20), len(self.text)),
            token_ids=self._ids(length),
            parents=list(range(-1, length - 1)),
            skipped=random_skip_set(self.rng, self.spec),
        )

    def runner(self, kernels: ModelBackend) -> Runner:
        runner = tiny_runner(self.spec, self.weights, backend=kernels, capacity=self.spec.max_positions)
        runner.sync(self.text)
        return runner

    def together(self) -> tuple[ForwardInput, list[list[int]]]:
        """The tree and all candidates in one pass, their rows shuffled, and which rows are whose, the tree's first."""
        branches = [self.tree, *self.candidates]
        owners = [number for number, branch in enumerate(branches) for _ in branch.token_ids]
        self.rng.shuffle(owners)
        rows = [[row for row, owner in enumerate(owners) if owner == number] for number in range(len(branches))]
        return merge(self.spec, len(self.text), branches, rows), rows

    def tree_alone(self) -> ForwardInput:
        inputs = merge(self.spec, len(self.text), [self.tree], [list(range(len(self.tree.token_ids)))])
        return replace(inputs, row_skips=None)


def merge(spec: ModelSpec, num_text: int, branches: Sequence[Branch], rows: Sequence[list[int]]) -> ForwardInput:
    """One pass behind a text of `num_text` tokens, in which branch b has rows[b]."""
    num_rows = sum(map(len, rows))
    prefix_len = min(branch.start for branch in branches)
    token_ids = [0] * num_rows
    positions = [0] * num_rows
    ancestry = np.zeros((num_rows, num_text + num_rows - prefix_len), np.bool_)
    row_skips = np.zeros((2 * spec.num_layers, num_rows), np.bool_).T  # not the layout that the library reads
    for branch, places in zip(branches, rows, strict=True):
        sees = ancestry_matrix(branch.parents)
        ancestry[places, : branch.start - prefix_len] = True
        ancestry[np.ix_(places, [num_text - prefix_len + place for place in places])] = sees
        row_skips[places] = [sublayer in branch.skipped for sublayer in all_sublayers(spec.num_layers)]
        for node, place in enumerate(places):
            token_ids[place] = branch.token_ids[node]
            positions[place] = branch.start + int(sees[node].sum()) - 1
    return ForwardInput(
        token_ids=token_ids,
        positions=positions,
        first_slot=num_text,
        prefix_len=prefix_len,
        ancestry=ancestry,
        num_logit_rows=num_rows,
        row_skips=row_skips,
    )


def run(runner: Runner, inputs: ForwardInput) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, keys and values [L, T, K, D] of the rows; the cache then holds the text alone again."""
    first = runner.cache.reserve(len(inputs.token_ids))
    rows = slice(inputs.first_slot, inputs.num_slots)
    logits = runner.forward(inputs).logits
    keys = runner.cache.keys_LSKD[:, rows].clone()
    values = runner.cache.values_LSKD[:, rows].clone()
    runner.cache.truncate(first)
    return logits, keys, values


def draft(runner: Runner, branch: Branch) -> Tensor:
    """Logits of a chain, each token in a draft pass of its own that leaves the skip set out."""
    runner.sync(runner.cached_ids[: branch.start])
    logits = []
    for token in branch.token_ids:
        slot = runner.cache.reserve(1)
        inputs = ForwardInput(
            token_ids=[token], positions=[slot], first_slot=slot, prefix_len=slot, skipped=branch.skipped
        )
        logits.append(runner.forward(inputs).logits)
    runner.cache.truncate(branch.start)
    return torch.cat(logits)


def gated_logits(case: Case, inputs: ForwardInput) -> Tensor:
    """Logits of the rows as `dense_logits` has them, but that every row of a layer has gates; those of the text are on.

    Legend: R rows of the text and behind it, N heads, D head size.
    """
    spec = case.spec
    weights = {name: weight.double() for name, weight in case.weights.items()}

    def linear(x: Tensor, name: str) -> Tensor:
        bias = weights.get(f"{name}.bias")
        return x @ weights[f"{name}.weight"].T + (0 if bias is None else bias)

    assert inputs.ancestry is not None
    assert inputs.row_skips is not None
    num_text = len(case.text)
    num_rows = inputs.num_slots
    visible_RR = torch.ones(num_rows, num_rows).tril() > 0
    visible_RR[num_text:, inputs.prefix_len :] = torch.from_numpy(inputs.ancestry)
    gates = torch.ones(num_rows, 2 * spec.num_layers)
    gates[num_text:] -= torch.from_numpy(inputs.row_skips).float()
    angles = rope_angles(spec, spec.rope, spec.max_positions)[[*range(num_text), *inputs.positions]]
    x = weights["embedding.weight"][[*case.text, *inputs.token_ids]]
    for layer in range(spec.num_layers):
        part = f"layers.{layer}."
        h = normalise(x, weights[part + "attention_norm.weight"], spec.norm_eps)
        q, k, v = linear(h, part + "qkv").split([spec.q_size, spec.kv_size, spec.kv_size], -1)
        q, k, v = (t.reshape(num_rows, -1, spec.head_dim) for t in (q, k, v))
        if spec.qk_norm:
            q = normalise(q, weights[part + "q_norm.weight"], spec.norm_eps)
            k = normalise(k, weights[part + "k_norm.weight"], spec.norm_eps)
        q = turn(q, spec.rope, angles)
        k = turn(k, spec.rope, angles)
        k, v = (t.repeat_interleave(spec.num_heads // spec.num_kv_heads, 1) for t in (k, v))
        scores = torch.einsum("qnd,knd->nqk", q, k) / spec.head_dim**0.5
        mixed = torch.einsum("nqk,knd->qnd", scores.masked_fill(~visible_RR, -torch.inf).softmax(-1), v)
        x = x + gates[:, 2 * layer, None] * linear(mixed.flatten(1), part + "attention_out")
        gate, up = linear(normalise(x, weights[part + "mlp_norm.weight"], spec.norm_eps), part + "gate_up").chunk(2, -1)
        x = x + gates[:, 2 * layer + 1, None] * linear(gate * gate.sigmoid() * up, part + "mlp_out")
    x = normalise(x[num_text:], weights["final_norm.weight"], spec.norm_eps)
    return linear(x, "embedding" if spec.tied_embeddings else "head")


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def precision(kernels: ModelBackend) -> tuple[torch.dtype, float]:
    """The widest dtype of these kernels, and how far its logits may be off."""
    return (torch.float32, 2e-4) if isinstance(kernels, CpuBackend) else (torch.float64, 1e-9)


@KERNELS
@pytest.mark.parametrize("seed", rest_slow(range(20), 8))
def test_every_row_gives_the_logits_of_its_own_sublayers(kernels: ModelBackend, seed: int) -> None:
    dtype, max_error = precision(kernels)
    case = Case(seed, dtype)
    inputs, _ = case.together()
    logits, _, _ = run(case.runner(kernels), inputs)
    torch.testing.assert_close(logits.double(), gated_logits(case, inputs), atol=max_error, rtol=0)


def check_tree(case: Case, runner: Runner) -> None:
    inputs, rows = case.together()
    together = run(runner, inputs)
    alone = run(runner, case.tree_alone())
    assert torch.equal(together[0][rows[0]], alone[0]), "logits"
    assert torch.equal(together[1][:, rows[0]], alone[1]), "keys"
    assert torch.equal(together[2][:, rows[0]], alone[2]), "values"


def check_candidates(case: Case, runner: Runner) -> None:
    inputs, rows = case.together()
    logits, _, _ = run(runner, inputs)
    for branch, places in sorted(zip(case.candidates, rows[1:], strict=True), key=lambda pair: -pair[0].start):
        assert torch.equal(logits[places], draft(runner, branch)), branch


@EXACT_KERNELS
@DTYPES
@pytest.mark.parametrize("seed", rest_slow(range(25), 3))
def test_a_tree_has_the_bits_of_a_pass_without_candidates(
    seed: int, dtype: torch.dtype, num_threads: int, kernels: ModelBackend
) -> None:
    case = Case(seed, dtype)
    check_tree(case, case.runner(kernels))


@EXACT_KERNELS
@DTYPES
@pytest.mark.parametrize("seed", rest_slow(range(25), 3))
def test_a_candidate_has_the_bits_of_draft_passes_that_skip_the_same(
    seed: int, dtype: torch.dtype, num_threads: int, kernels: ModelBackend
) -> None:
    case = Case(seed, dtype)
    check_candidates(case, case.runner(kernels))


@EXACT_KERNELS
@pytest.mark.parametrize("seed", range(8))
def test_what_the_pass_skips_and_what_the_row_skips_add_up(seed: int, kernels: ModelBackend) -> None:
    case = Case(seed, torch.float32)
    inputs, _ = case.together()
    skipped = random_skip_set(case.rng, case.spec)
    gates = np.array([sublayer in skipped for sublayer in all_sublayers(case.spec.num_layers)])
    runner = case.runner(kernels)
    both, _, _ = run(runner, replace(inputs, skipped=skipped))
    by_rows, _, _ = run(runner, replace(inputs, row_skips=inputs.row_skips | gates))
    assert torch.equal(both, by_rows)


@KERNELS
@pytest.mark.parametrize(("more_rows", "num_sublayers"), [(0, 3), (0, 5), (1, 4), (-1, 4)])
def test_gates_of_other_rows_or_sublayers_are_refused(
    kernels: ModelBackend, more_rows: int, num_sublayers: int
) -> None:
    case = Case(3, torch.float32, spec=plain_spec())
    row_skips = np.zeros((len(case.tree.token_ids) + more_rows, num_sublayers), np.bool_)
    with pytest.raises(AssertionError, match="row skips"):
        run(case.runner(kernels), replace(case.tree_alone(), row_skips=row_skips))
