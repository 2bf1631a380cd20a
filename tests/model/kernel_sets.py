"""Which kernels there are on this machine."""

import pytest

from forerun.backends.cpu.backend import NATIVE
from forerun.backends.cpu.binding import fault
from forerun.backends.torch.backend import FUSED, REFERENCE

NATIVE_SETS = [pytest.param(NATIVE, id="native", marks=pytest.mark.skipif(fault() is not None, reason=str(fault())))]
KERNEL_SETS = [pytest.param(REFERENCE, id="reference"), pytest.param(FUSED, id="fused"), *NATIVE_SETS]
EXACT_SETS = [pytest.param(REFERENCE, id="reference"), *NATIVE_SETS]
