"""The threads of torch and of the CPU kernels, where small calls of both alternate."""

from collections.abc import Iterator

import pytest
import torch

from forerun.core.threads import kernel_threads, on_threads, torch_on_one_thread


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def numbers() -> tuple[int, int]:
    return torch.get_num_threads(), kernel_threads()


def test_torch_uses_one_thread_and_the_kernels_as_many_as_before() -> None:
    assert torch_on_one_thread(numbers) == (1, 3)
    assert torch_on_one_thread(lambda: torch_on_one_thread(numbers)) == (1, 3)
    assert on_threads(2, lambda: torch_on_one_thread(numbers)) == (1, 2)
    assert numbers() == (3, 3)


def test_both_numbers_are_restored_after_an_error() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torch_on_one_thread(fail)
    assert numbers() == (3, 3)
