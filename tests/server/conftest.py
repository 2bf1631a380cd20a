"""One server for all tests that leave it as it was."""

from collections.abc import Iterator

import httpx
import pytest

from tests.server.serving import Served, served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made
