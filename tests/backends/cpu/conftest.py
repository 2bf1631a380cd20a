"""Every test that asks for `tier` runs once on each instruction set of this machine."""

from collections.abc import Iterator
from typing import Final

import pytest

from forerun.backends.cpu.binding import fault, library

TIERS: Final = ("portable", "neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16")


def tiers_here() -> list[str]:
    """Those that this machine and this build have."""
    found = [] if fault() else [name for name in TIERS if library().forerun_select_tier(name.encode())]
    if found:
        library().forerun_select_tier(None)
    return found


@pytest.fixture(params=tiers_here() or [None])
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param is None:
        pytest.skip(str(fault()))
    library().forerun_select_tier(request.param.encode())
    yield request.param
    library().forerun_select_tier(None)
