"""Which cases of a parametrised test run by default."""

from collections.abc import Iterable
from typing import Any

import pytest


def rest_slow(values: Iterable[Any], num_default: int) -> list[Any]:
    """The first cases run by default, the others with the slow tests."""
    return [
        value if number < num_default else pytest.param(value, marks=pytest.mark.slow)
        for number, value in enumerate(values)
    ]
