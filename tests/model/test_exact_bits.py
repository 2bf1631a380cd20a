"""Exact mode: the bits of a row depend on its own text alone.

The inverse test guards the others: where the fast kernels show no difference either, nothing was tested.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from forerun.backends.torch.backend import REFERENCE
from forerun.backends.torch.ops import TreeMask
from forerun.core.model_spec import ModelSpec
from forerun.model.backend import ModelBackend
from forerun.model.runner import Runner
from forerun.model.weights import DenseWeight
from tests.marks import rest_slow
from tests.model.kernel_sets import EXACT_SETS
from tests.tiny import random_weights, tiny_runner, tiny_spec, tree_logits

KERNELS = pytest.mark.parametrize("kernels", EXACT_SETS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
SHAPES = {
    "even": {"hidden_size": 64, "num_heads": 8, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 96},
    "odd": {"hidden_size": 45, "num_heads": 6, "num_kv_heads": 3, "head_dim": 10, "intermediate_size": 77},
    "wide": {"hidden_size": 160, "num_heads": 4, "num_kv_heads": 4, "head_dim": 40, "intermediate_size": 333},
}
VOCAB_SIZE = 259
PROMPT_LENGTHS = (1, 17, 40)


def exact_spec(shape: str) -> ModelSpec:
    return tiny_spec(random.Random(1), num_layers=2, vocab_size=VOCAB_SIZE, **SHAPES[shape])


def build(shape: str, dtype: torch.dtype, kernels: ModelBackend) -> Runner:
    spec = exact_spec(shape)
    return tiny_runner(spec, random_weights(spec, torch.Generator().manual_seed(2), dtype=dtype), backend=kernels)


@contextmanager
def threads(num_threads: int) -> Iterator[None]:
    num_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    yield
    torch.set_num_threads(num_before)


def random_ids(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(VOCAB_SIZE) for _ in range(num)]


def one_by_one(runner: Runner, token_ids: list[int]) -> Tensor:
    """Logits after every token, each from a pass of one row."""
    runner.sync(())
    return torch.cat([runner.extend([token], num_logit_rows=1) for token in token_ids])


def in_trees(runner: Runner, rng: random.Random, prompt: list[int], path: list[int]) -> Tensor:
    """Logits along `path`, verified among random siblings several nodes a pass, after a prefill in one go."""
    runner.sync(())
    runner.sync(prompt)
    rows = []
    while path:
        num_nodes = rng.randint(1, min(6, len(path)))
        token_ids = [path[0]]
        parents = [-1]
        on_path = [0]
        for token in path[1:num_nodes]:
            for _ in range(rng.randint(0, 3)):
                token_ids.append(rng.randrange(VOCAB_SIZE))
                parents.append(rng.randrange(len(parents)))
            token_ids.append(token)
            parents.append(on_path[-1])
            on_path.append(len(parents) - 1)
        rows.append(tree_logits(runner, token_ids, parents)[on_path])
        runner.commit(on_path, path[:num_nodes])
        path = path[num_nodes:]
    return torch.cat(rows)


def num_different_rows(runner: Runner, seed: int) -> int:
    """Rows whose bits differ between steps of one token and verified trees after one prefill."""
    rng = random.Random(seed)
    num_prompt = PROMPT_LENGTHS[seed % len(PROMPT_LENGTHS)]
    prompt = random_ids(rng, num_prompt)
    path = random_ids(rng, 24)
    alone = one_by_one(runner, [*prompt, *path])[num_prompt:]
    together = in_trees(runner, rng, prompt, path)
    assert alone.isfinite().all()
    return int((alone != together).any(-1).sum())


@KERNELS
@DTYPES
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", rest_slow(range(6), 2))
def test_a_rows_bits_are_the_same_alone_and_in_any_tree(
    shape: str, dtype: torch.dtype, seed: int, kernels: ModelBackend
) -> None:
    assert num_different_rows(build(shape, dtype, kernels), seed) == 0


@KERNELS
@DTYPES
@pytest.mark.parametrize("shape", rest_slow(["odd", "even", "wide"], 1))
@pytest.mark.parametrize("num_threads", rest_slow([2, 1], 1))
def test_a_prefill_has_the_bits_of_single_steps(
    shape: str, dtype: torch.dtype, num_threads: int, kernels: ModelBackend
) -> None:
    runner = build(shape, dtype, kernels)
    token_ids = random_ids(random.Random(3), 50)
    with threads(num_threads):
        alone = one_by_one(runner, token_ids)
        runner.sync(())
        assert torch.equal(runner.extend(token_ids, num_logit_rows=50), alone)


ROW_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
NUM_ROWS = 64


def random_tensor(*shape: int, dtype: torch.dtype, seed: int = 4) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rows_stand_alone(compute: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """The same bits alone, in the first rows of any number, and at any index among other rows."""
    alone = torch.cat([compute(x[row : row + 1].clone()) for row in range(len(x))])
    for num_rows in (1, 2, 7, 8, 9, 16, len(x)):
        assert torch.equal(compute(x[:num_rows]), alone[:num_rows]), f"among {num_rows} rows"
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    assert torch.equal(compute(x[order]), alone[order]), "at other indices"


@ROW_DTYPES
@pytest.mark.parametrize("shape", [(33, 65), (64, 64), (77, 500), (9, 9), (6, 593), (4, 10), (45, 77), (1000, 77)])
def test_a_linear_rows_bits_depend_on_no_other_row(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Odd sizes matter: rows of odd length begin at addresses that a matrix kernel may treat differently."""
    linear = REFERENCE.ops.pack_linear(DenseWeight(values_OI=random_tensor(*shape, dtype=dtype, seed=6)), None)
    assert_rows_stand_alone(linear, random_tensor(33, shape[1], dtype=dtype))


@ROW_DTYPES
@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("width", [7, 77, 333, 2731])
def test_a_gated_or_normed_rows_bits_depend_on_no_other_row(dtype: torch.dtype, num_threads: int, width: int) -> None:
    """Large enough for several threads to share the rows, so that one thread's part may begin within a row."""
    with threads(num_threads):
        assert_rows_stand_alone(REFERENCE.ops.silu_mul, random_tensor(NUM_ROWS, 2 * width, dtype=dtype))
        norm = REFERENCE.ops.pack_norm(random_tensor(width, dtype=dtype, seed=6), 1e-5)
        assert_rows_stand_alone(norm, random_tensor(NUM_ROWS, width, dtype=dtype))


@ROW_DTYPES
@pytest.mark.parametrize("num_heads", [1, 3, 6])
@pytest.mark.parametrize("head_dim", [2, 6, 10, 16, 20, 40])
def test_a_rows_attention_bits_do_not_depend_on_its_index(dtype: torch.dtype, num_heads: int, head_dim: int) -> None:
    """Every row is the same query over the same slots, at addresses of every alignment."""
    q_TQD = random_tensor(1, num_heads, head_dim, dtype=dtype).expand(16, -1, -1).contiguous()
    keys_SKD, values_SKD = random_tensor(2, 50, 1, head_dim, dtype=dtype, seed=7)
    seen_TW = torch.zeros(16, 50, dtype=torch.bool)
    seen_TW[:, ::2] = True
    mask = TreeMask(num_rows=16, num_slots=50, prefix_len=0, ancestry_TW=seen_TW)
    prepared = REFERENCE.ops.prepare_mask(mask, group=num_heads, like=q_TQD)
    mixed = REFERENCE.ops.tree_attention(q_TQD, keys_SKD, values_SKD, prepared)
    assert torch.equal(mixed, mixed[:1].expand_as(mixed))
