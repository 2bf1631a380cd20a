"""Engines on the instruction sets of other CPUs: the same texts as on this one, drafted or not."""

from collections.abc import Iterator

import pytest

from forerun import DraftModel, Engine, EngineConfig, NoDrafter, SamplingParams, TokenRecycling
from forerun.backends.cpu.binding import fault, library
from forerun.core.drafter_config import BUILTIN_DRAFT, DrafterConfig
from tests.marks import rest_slow

pytestmark = pytest.mark.skipif(fault() is not None, reason="the native library is not built")
PARAMS = (SamplingParams(max_new_tokens=24), SamplingParams(temperature=1.0, seed=3, max_new_tokens=24))


@pytest.fixture(params=["portable", "avx2"])
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    if not library().forerun_select_tier(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    library().forerun_select_tier(None)


def texts(drafter: DrafterConfig) -> list[tuple[int, ...]]:
    with Engine(EngineConfig(drafter=drafter, num_threads=1, max_length=128)) as engine:
        return [tuple(engine.generate("def area(", params).token_ids) for params in PARAMS]


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    return texts(NoDrafter())


@pytest.mark.parametrize("drafter", rest_slow([DraftModel(model=BUILTIN_DRAFT), TokenRecycling(), NoDrafter()], 1))
def test_a_text_is_that_of_every_other_cpu(drafter: DrafterConfig, expected: list[tuple[int, ...]], tier: str) -> None:
    assert texts(drafter) == expected
