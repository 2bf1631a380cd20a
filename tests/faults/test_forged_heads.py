"""Whatever a stranger's draft head holds, it is refused in one line, or drafts and the text is the plain one."""

import logging
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.forged_heads import KINDS, ForgedHeads

LOGGER = logging.getLogger(__name__)
FEW = 12
MANY = 3000
NUM_GOOD = 6


def outcomes(heads: ForgedHeads, kind: str, numbers: range) -> Counter[str]:
    """What became of the heads of these seeds. Errors of drafters come through, though in use they cost no text."""
    counts = Counter[str]()
    for number in numbers:
        try:
            counts[heads.outcome(kind, number)] += 1
        except BaseException as error:  # whatever comes out is what is looked for
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            counts[f"head {number}: {type(error).__name__}: {error}"[:300]] += 1
    LOGGER.info("%s: %s", kind, dict(counts))
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_refused_or_does_no_harm(kind: str, tmp_path: Path) -> None:
    heads = ForgedHeads(tmp_path)
    assert {heads.outcome(kind, number, num_changes=0) for number in range(NUM_GOOD)} == {"plain text"}
    assert set(outcomes(heads, kind, range(FEW))) == {"refused", "plain text"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", KINDS)
def test_each_is_refused_or_does_no_harm(kind: str, tmp_path: Path) -> None:
    assert set(outcomes(ForgedHeads(tmp_path), kind, range(FEW, MANY))) == {"refused", "plain text"}
