"""The number of threads of torch and the CPU kernels."""

import os
from collections.abc import Callable
from threading import local
from typing import TypeVar

import torch

T = TypeVar("T")


class _Threads(local):
    """The numbers that the calling thread has set."""

    num_kernel_threads: int | None = None  # None: as many as torch's, or one where these are lost


class _Pool:
    """Torch's own threads. Forking does not copy them: a child that used them would wait for ever, so it uses none.
    The kernels start their threads again (pthread_atfork)."""

    has_worked = False
    is_lost = False


_threads = _Threads()


def on_threads(num_threads: int, work: Callable[[], T]) -> T:
    """Do the work with `num_threads` threads for torch and the CPU kernels.

    torch stores the number per thread, but a thread that uses torch for the first time inherits the last number that
    any thread has set; we cannot prevent that for a host program's own threads. An interrupt cannot leave torch with
    this number, see `core.affinity.run_on`.
    """
    if _Pool.is_lost:
        return _on_kernel_threads(num_threads, work)
    _Pool.has_worked = _Pool.has_worked or num_threads > 1
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads)
        return work()
    finally:
        torch.set_num_threads(before)


def on_one_thread(work: Callable[[], T]) -> T:
    """Do torch's work between two passes on one thread: torch's threads keep spinning for milliseconds after a parallel
    call, and would compete with the next pass for the cores."""
    return on_threads(1, work)


def torch_on_one_thread(work: Callable[[], T]) -> T:
    """Do work in which small torch calls alternate with the CPU kernels, which use as many threads as before."""
    return _on_kernel_threads(kernel_threads(), work)


def kernel_threads() -> int:
    """How many threads the CPU kernels may use now."""
    if _threads.num_kernel_threads is not None:
        return _threads.num_kernel_threads
    return 1 if _Pool.is_lost else torch.get_num_threads()


def _on_kernel_threads(num_threads: int, work: Callable[[], T]) -> T:
    before = _threads.num_kernel_threads
    num_torch_threads = 1 if _Pool.is_lost else torch.get_num_threads()
    try:
        _threads.num_kernel_threads = num_threads
        torch.set_num_threads(1)  # which may be the first use of torch in this thread
        return work()
    finally:
        _threads.num_kernel_threads = before
        torch.set_num_threads(num_torch_threads)


def _lose_pool() -> None:
    if _Pool.has_worked:
        _Pool.is_lost = True
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_lose_pool)
