"""Every test that asks for `tier` runs once on each instruction set of this machine."""

from collections.abc import Iterator

import pytest

from forerun.backends.cpu.binding import fault, library


@pytest.fixture(params=["portable", "neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"])
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    if fault() is not None:
        pytest.skip(str(fault()))
    if not library().forerun_select_tier(request.param.encode()):
        pytest.skip(f"this machine or this build lacks {request.param}")
    yield request.param
    library().forerun_select_tier(None)
