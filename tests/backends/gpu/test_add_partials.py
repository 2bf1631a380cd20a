"""Partial sums of several ranks on one device: the bits of `sum_in_order`, in any company, exchange after exchange."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.marks import in_turn

pytest.importorskip("triton")

from forerun.backends.gpu.passes.add_partials import add_partials, num_tiles_of
from forerun.backends.gpu.passes.exchange import RankExchange
from forerun.backends.gpu.passes.linear import linear_partial
from forerun.backends.gpu.passes.linear_buffers import NextNorm, SplitWorkspace
from forerun.backends.gpu.passes.packed_linear import pack
from forerun.sharding.sums import sum_in_order
from tests.backends.gpu.linears import (
    DTYPES,
    MOST_ROWS,
    pack_split,
    poisoned,
    product_of,
    random_rows,
    random_weight,
    workspace_of,
)
from tests.backends.gpu.peers import begin_at, fill_place, flags_of, local_exchanges

SIZE = 144  # two tiles and a part of one
LAST = 2**31 - 1  # the last number before they overflow


class Sum:
    """What `add_partials` left on one rank; rows that it must not write are as they were."""

    def __init__(
        self, exchange: RankExchange, dtype: torch.dtype, num_rows: int, row_skips: Tensor | None = None
    ) -> None:
        device = exchange.memories[0].device
        self.before = random_rows(SIZE, torch.float32, seed=9).to(device)
        self.norm_weight = torch.linspace(0.5, 2.0, SIZE, device=device)
        self.x = self.before.clone()
        self.h = poisoned(MOST_ROWS, SIZE, dtype=dtype).to(device)
        self.squares = poisoned(num_tiles_of(SIZE), MOST_ROWS).to(device)
        add_partials(
            exchange, self.x, num_rows=num_rows, row_skips=row_skips, sublayer=1, num_sublayers=3, overlaps=False,
            next_norm=NextNorm(weight=self.norm_weight, h=self.h, squares=self.squares, scale=0.25),
        )  # fmt: skip
        assert torch.equal(self.x[num_rows:], self.before[num_rows:])
        assert self.h[num_rows:].isnan().all()
        assert self.squares[:, num_rows:].isnan().all()


def partials_of(num_ranks: int, dtype: torch.dtype, num_rows: int, device: str, *, first: int = 0) -> list[Tensor]:
    """Of each rank; the rows of a longer pass begin with those of a shorter one."""
    rows = [random_rows(SIZE, dtype, seed=20 + rank + 100 * first).to(device) for rank in range(num_ranks)]
    return [row[:num_rows] for row in rows]


def sum_on(
    exchanges: list[RankExchange], partials: list[Tensor], number: int, row_skips: Tensor | None = None
) -> list[Sum]:
    """The sum on every rank, of which each finds that all others have filled their places."""
    for one, partial_TH in zip(exchanges, partials, strict=True):
        fill_place(one, number, partial_TH)
        flags_of(one).fill_(number)
    return [Sum(one, partials[0].dtype, len(partials[0]), row_skips) for one in exchanges]


@pytest.mark.parametrize(("dtype", "num_ranks"), in_turn(DTYPES, [8, 3, 2]), ids=str)
def test_the_sum_is_that_in_order_bit_for_bit(dtype: torch.dtype, num_ranks: int, device: str) -> None:
    exchanges = local_exchanges(num_ranks, SIZE, dtype, device)
    for number, num_rows in enumerate((1, 17, 5), 1):
        partials = partials_of(num_ranks, dtype, num_rows, device, first=number)
        for found in sum_on(exchanges, partials, number):
            after = sum_in_order(partials, found.before[:num_rows])
            assert torch.equal(found.x[:num_rows], after)
            rounding = 2**-7 if dtype == torch.bfloat16 else 2**-10  # the interpreter cuts digits off
            torch.testing.assert_close(
                found.h[:num_rows].float(), after * found.norm_weight * 0.25, rtol=rounding, atol=1e-7
            )
            torch.testing.assert_close(found.squares[:, :num_rows].sum(0), after.square().sum(1))
        assert all(int(one.peers.lost) == 0 for one in exchanges)


def test_a_row_has_the_same_bits_in_any_company(device: str) -> None:
    exchanges = local_exchanges(2, SIZE, torch.bfloat16, device)
    whole = sum_on(exchanges, partials_of(2, torch.bfloat16, MOST_ROWS, device), 1)[0]
    for number, num_rows in enumerate((1, 5, 17), 2):
        part = sum_on(exchanges, partials_of(2, torch.bfloat16, num_rows, device), number)[1]
        for one, other in ((part.x, whole.x), (part.h, whole.h), (part.squares.T, whole.squares.T)):
            assert torch.equal(one[:num_rows], other[:num_rows]), num_rows


def test_a_skipped_row_keeps_its_x_and_is_prepared_all_the_same(device: str) -> None:
    row_skips = torch.tensor([0, 1, 0, 1, 0, 1], dtype=torch.int32, device=device)  # row 0 leaves out sublayer 1
    exchanges = local_exchanges(2, SIZE, torch.float32, device)
    found, _ = sum_on(exchanges, partials_of(2, torch.float32, 2, device), 1, row_skips)
    assert torch.equal(found.x[0], found.before[0])
    assert not torch.equal(found.x[1], found.before[1])
    torch.testing.assert_close(found.squares[:, 0].sum(), found.before[0].square().sum())
    torch.testing.assert_close(found.h[0], found.before[0] * found.norm_weight * 0.25)


@pytest.mark.filterwarnings("ignore:overflow encountered")  # the interpreter's numpy; a GPU's integers just wrap
def test_numbers_of_exchanges_may_overflow(device: str) -> None:
    exchanges = local_exchanges(2, SIZE, torch.float32, device)
    begin_at(exchanges, LAST - 1)
    for number in (LAST, -LAST - 1, -LAST):
        partials = partials_of(2, torch.float32, 3, device, first=number % 7)
        for found in sum_on(exchanges, partials, number):
            assert torch.equal(found.x[:3], sum_in_order(partials, found.before[:3]))
    assert all(int(one.peers.lost) == 0 for one in exchanges)


def test_a_rank_that_waits_in_vain_says_so_and_goes_on(device: str) -> None:
    exchanges = local_exchanges(2, SIZE, torch.float32, device)
    fill_place(exchanges[0], 1, partials_of(2, torch.float32, 3, device)[0])
    Sum(exchanges[0], torch.float32, 3)
    torch.testing.assert_close(flags_of(exchanges[1])[:, 0], exchanges[0].peers.exchanges)  # the other was told
    assert int(exchanges[0].peers.lost) == 1
    assert int(exchanges[1].peers.lost) == 0
    assert exchanges[0].peers.exchanges.tolist() == [1] * num_tiles_of(SIZE)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_rows", [3, 20, 40])
def test_a_product_goes_to_the_place_of_the_next_exchange(num_rows: int, dtype: torch.dtype) -> None:
    weight = random_weight(SIZE, 256, "plain", dtype)
    bias_O = random_rows(SIZE, torch.float32, num_rows=1)[0]
    packed = pack_split(weight, bias_O, compute=dtype, num_splits=2)
    inputs = random_rows(256, dtype)
    one, other = local_exchanges(2, SIZE, dtype, "cpu")
    for number in (1, 2):
        begin_at([one, other], number - 1)
        linear_partial(inputs, packed, one, num_rows=num_rows, workspace=workspace_of(packed), overlaps=False)
        written = one.place(0, number).view(dtype)[: num_rows * SIZE].view(num_rows, SIZE)
        rounding = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
        expected = product_of(inputs, weight, bias_O)[:num_rows]
        torch.testing.assert_close(written.double(), expected, rtol=rounding, atol=2e-4)
        assert not one.place(0, number)[num_rows * SIZE * dtype.itemsize :].any()
        assert not other.place(1, number).any()
        assert number == 2 or not one.place(0, number + 1).any()


def recorded_rank(exchange: RankExchange, inputs: Tensor, x: Tensor) -> tuple[torch.cuda.CUDAGraph, torch.cuda.Stream]:
    """A product and the sum over ranks as one graph, and the stream to play it on; it was played once."""
    packed = pack(random_weight(SIZE, 64, "plain", torch.bfloat16), None, compute=torch.bfloat16)
    weight = packed.weight._replace(matrix=packed.weight.matrix.cuda())
    packed = replace(packed, weight=weight)
    workspace = SplitWorkspace.for_linears([packed], max_rows=MOST_ROWS, device="cuda")
    h = torch.zeros(MOST_ROWS, SIZE, dtype=torch.bfloat16).cuda()
    squares = torch.zeros(num_tiles_of(SIZE), MOST_ROWS).cuda()
    norm = NextNorm(weight=torch.ones(SIZE).cuda(), h=h, squares=squares, scale=1.0)

    def work() -> None:
        linear_partial(inputs, packed, exchange, num_rows=3, workspace=workspace, overlaps=False)
        add_partials(
            exchange, x, num_rows=3, next_norm=norm, row_skips=None, sublayer=0, num_sublayers=1, overlaps=False
        )

    flags_of(exchange).fill_(1)  # as if all others were there already
    work()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph, stream


@pytest.mark.gpu
def test_recorded_ranks_on_two_streams_of_one_gpu_wait_for_each_other() -> None:
    exchanges = [replace(one, most_polls=10_000_000) for one in local_exchanges(2, SIZE, torch.bfloat16, "cuda")]
    inputs = [random_rows(64, torch.bfloat16, seed=rank).cuda() for rank in range(2)]
    xs = [torch.zeros(3, SIZE, device="cuda") for _ in range(2)]
    ranks = [recorded_rank(*rank) for rank in zip(exchanges, inputs, xs, strict=True)]
    for x in xs:
        x.zero_()
    torch.cuda.synchronize()
    for _ in range(100):
        for graph, stream in ranks:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    partials = [one.place(one.rank, 1).view(torch.bfloat16)[: 3 * SIZE].view(3, SIZE) for one in exchanges]
    expected = torch.zeros(3, SIZE, device="cuda")
    for _ in range(100):
        expected = sum_in_order(partials, expected)
    assert all(torch.equal(x, expected) for x in xs)
    assert all(int(one.peers.lost) == 0 for one in exchanges)
