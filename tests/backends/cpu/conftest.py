"""Every test that asks for `tier` runs on the worst and the best instruction set of this machine, and slowly on all.

That those between have the bits of the best one is checked for all products and whole passes by `test_tiers`.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from forerun.backends.cpu.binding import fault, library

TIERS: Final = ("portable", "neon", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx")


def tiers_here() -> list[str]:
    """Those that this machine and this build have."""
    found = [] if fault() else [name for name in TIERS if library().forerun_select_tier(name.encode())]
    if found:
        library().forerun_select_tier(None)
    return found


def worst_and_best() -> list[Any]:
    found = tiers_here() or [None]
    return [pytest.param(name, marks=() if name in (found[0], found[-1]) else pytest.mark.slow) for name in found]


@pytest.fixture(params=worst_and_best())
def tier(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param is None:
        pytest.skip(str(fault()))
    library().forerun_select_tier(request.param.encode())
    yield request.param
    library().forerun_select_tier(None)
