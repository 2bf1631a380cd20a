"""How well counts fit a law."""

from collections.abc import Sequence

import torch

MIN_EXPECTED = 5.0


def chi_square_p_value(counts: Sequence[float], expected: Sequence[float]) -> float:
    """How likely counts as far from `expected` as these are, if that is their law. Bins expect at least 5 each."""
    assert min(expected) >= MIN_EXPECTED, f"a bin expects only {min(expected)}"
    distance = sum((count - mean) ** 2 / mean for count, mean in zip(counts, expected, strict=True))
    degrees = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(distance / 2, dtype=torch.float64)))
