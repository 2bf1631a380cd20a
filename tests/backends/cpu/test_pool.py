"""The library's threads: shared by callers, absent after a fork, placed where they should be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.cpu.cores import keep_pool_on
from forerun.model.weights import DenseWeight
from tests.backends.cpu.ops import Product

TASKS = Path("/proc/self/task")
pytestmark = pytest.mark.skipif(fault() is not None, reason=str(fault()))


@pytest.fixture
def product() -> tuple[Product, torch.Tensor, torch.Tensor]:
    """A linear, inputs, and what they give on one thread."""
    generator = torch.Generator().manual_seed(1)
    linear = Product.pack(DenseWeight(values_OI=torch.randn(256, 128, generator=generator)), None)
    x = torch.randn(5, 128, generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = linear(x)
    torch.set_num_threads(before)
    return linear, x, expected


def on_threads(num_threads: int, product: tuple[Product, torch.Tensor, torch.Tensor]) -> bool:
    linear, x, expected = product
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    is_equal = bool(torch.equal(linear(x), expected))
    torch.set_num_threads(before)
    return is_equal


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_any_number_of_threads_gives_the_same(
    num_threads: int, product: tuple[Product, torch.Tensor, torch.Tensor]
) -> None:
    assert all(on_threads(num_threads, product) for _ in range(200))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not say where threads may run")
def test_threads_that_hardly_get_a_core_change_nothing(product: tuple[Product, torch.Tensor, torch.Tensor]) -> None:
    cores = os.sched_getaffinity(0)
    one = min(cores)
    burn = f"import os; os.sched_setaffinity(0, {{{one}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE) as rival:
        try:
            assert rival.stdout is not None
            assert rival.stdout.readline()
            os.sched_setaffinity(0, {one})
            keep_pool_on((one,))
            assert all(on_threads(num_threads, product) for num_threads in (1, 2, 3, 7) for _ in range(100))
        finally:
            os.sched_setaffinity(0, cores)
            keep_pool_on(())
            rival.kill()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_gets_threads_of_its_own(product: tuple[Product, torch.Tensor, torch.Tensor]) -> None:
    assert on_threads(3, product)
    child = os.fork()
    if child == 0:
        os._exit(0 if on_threads(3, product) else 1)  # would hang if it waited for the parent's threads
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert on_threads(3, product)


@pytest.mark.skipif(not TASKS.is_dir(), reason="the system does not tell where threads may run")
def test_the_pool_stays_on_the_cores_it_is_given(product: tuple[Product, torch.Tensor, torch.Tensor]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    before = {int(task.name) for task in TASKS.iterdir()}
    keep_pool_on(cores[:1])
    assert on_threads(6, product)
    started = {int(task.name) for task in TASKS.iterdir()} - before
    assert all(os.sched_getaffinity(thread) == {cores[0]} for thread in started)
    keep_pool_on(())
    assert all(os.sched_getaffinity(thread) == set(cores) for thread in started)


def test_slots_move_as_if_all_were_read_first() -> None:
    storage = torch.arange(2 * 3 * 10 * 2 * 4, dtype=torch.float32).view(2, 3, 10, 2, 4).clone()
    expected = storage.clone()
    expected[:, :, 3:7] = storage[:, :, [8, 3, 4, 9]]
    NATIVE.move_slots(storage, [8, 3, 4, 9], 3)
    assert torch.equal(storage, expected)
