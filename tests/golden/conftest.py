"""One checkpoint of each family per test run, with the transformers model it was written from."""

import pytest

from tests.golden.families import FAMILIES, Golden


@pytest.fixture(scope="session", params=list(FAMILIES))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return FAMILIES[request.param].save(tmp_path_factory.mktemp(request.param))
