"""Emulated kernels of every test here waste no time."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _emulated_without_idle_work(emulation: None) -> None:
    pass
