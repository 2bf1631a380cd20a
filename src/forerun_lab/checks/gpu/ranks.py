"""The sum over the ranks of a shared model, on as many GPUs as there are: time of one in a chain of dependent ones."""

from collections.abc import Iterator
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from forerun.backends.gpu.cuda_graphs import GraphPool
from forerun.backends.gpu.executor import MAX_ROWS, can_overlap
from forerun.backends.gpu.passes.add_partials import add_partials, num_tiles_of
from forerun.backends.gpu.passes.linear_buffers import NextNorm
from forerun.backends.gpu.peer_group import PeerGroup
from forerun_lab.checks.gpu.cases import Case, NotThere, Row, Setting
from tests.backends.gpu.peers import run_ranks

SIZES = (4096, 8192)  # features of an 8B and of a 70B model
ROWS = (1, 8, 16, 32)
CHAIN = 100  # sums in one graph, as in a pass of 50 layers
REPLAYS = 30


def cases(setting: Setting) -> Iterator[Case]:
    counts = [2] if setting.is_rehearsal else [count for count in (2, 4, 8) if count <= torch.cuda.device_count()]
    for num_ranks in counts or [0]:
        yield Case(name=f"{num_ranks} ranks", run=partial(sums, num_ranks, setting))


def sums(num_ranks: int, setting: Setting) -> Iterator[Row]:
    """One row for each size and number of rows, the slowest rank's."""
    if not num_ranks:
        raise NotThere("a second GPU")
    shapes = [(128, 2)] if setting.is_rehearsal else [(size, num_rows) for size in SIZES for num_rows in ROWS]
    found = run_ranks(num_ranks, setting.device, time_sums, shapes, 1 if setting.is_rehearsal else CHAIN)
    for (size, num_rows), times in zip(shapes, zip(*found, strict=True), strict=True):
        read_bytes = (num_ranks - 1) * num_rows * size * torch.bfloat16.itemsize
        yield {"ranks": num_ranks, "size": size, "rows": num_rows, "us": 1e6 * max(times), "read_bytes": read_bytes}


@torch.inference_mode()
def time_sums(group: PeerGroup, shapes: list[tuple[int, int]], chain: int) -> list[float]:
    """Seconds of one sum of each shape on this rank."""
    return [time_sum(group, size, num_rows, chain) for size, num_rows in shapes]


def time_sum(group: PeerGroup, size: int, num_rows: int, chain: int) -> float:
    device = group.device
    exchange = group.open_exchange(num_programs=num_tiles_of(size), place_bytes=MAX_ROWS * size * 2)
    x = torch.zeros(MAX_ROWS, size, device=device)
    h = torch.zeros(MAX_ROWS, size, dtype=torch.bfloat16, device=device)
    squares = torch.zeros(num_tiles_of(size), MAX_ROWS, device=device)
    norm = NextNorm(weight=torch.ones(size, device=device), h=h, squares=squares, scale=1.0)
    graphs = GraphPool(str(device))

    def work() -> None:
        for _ in range(chain):
            add_partials(
                exchange, x, num_rows=num_rows, next_norm=norm, row_skips=None, sublayer=0, num_sublayers=1,
                overlaps=can_overlap(device),
            )  # fmt: skip

    times = []
    for _ in range(2 + (REPLAYS if device.type == "cuda" else 0)):  # compiled, then recorded
        group.join_columns(x[:1, :1])  # all begin together
        began = perf_counter()
        graphs.run("sums", work)
        wait_for(x)
        times.append(perf_counter() - began)
    return median(times[1:]) / chain


def wait_for(x: Tensor) -> None:
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
