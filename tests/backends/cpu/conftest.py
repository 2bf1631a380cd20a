"""Every test that asks for `tier` runs once on each instruction set of this machine."""

from collections.abc import Iterator
from typing import Final

import pytest

from forerun.backends.cpu.binding import fault, library

TIERS: Final = ("portable", "neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16")


@pytest.fixture(params=TIERS)
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    if fault() is not None:
        pytest.skip(str(fault()))
    if not library().forerun_select_tier(request.param.encode()):
        pytest.skip(f"this machine or this build lacks {request.param}")
    yield request.param
    library().forerun_select_tier(None)
