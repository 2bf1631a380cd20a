"""Rounds of speculation that stay on the device: a draft's passes, a verification, and all that lies between."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

from benchmarks.gpu.cases import Case, NotThere, Row, Setting
from benchmarks.gpu.models import Model, models

PAIRS = (("70b int4", "1b int4"), ("8b bf16", "1b bf16"), ("8b int4", "1b int4"))
WIDTHS = ((8, 8, 5), (16, 8, 6), (32, 8, 8))  # verify_width, draft_width, depth
HOME = "forerun.engine.device_rounds"  # where device-resident rounds are to be


def cases(setting: Setting) -> Iterator[Case]:
    for pair in PAIRS[: 1 if setting.is_quick or setting.is_rehearsal else None]:
        target, draft = models(setting, *pair)
        yield Case(name=f"{target} with {draft}", run=partial(rounds, target, draft, setting))


def rounds(target: Model, draft: Model, setting: Setting) -> Iterator[Row]:
    for verify_width, draft_width, depth in WIDTHS:
        yield from measure_rounds(
            target, draft, setting, verify_width=verify_width, draft_width=draft_width, depth=depth
        )


def measure_rounds(
    target: Model, draft: Model, setting: Setting, *, verify_width: int, draft_width: int, depth: int
) -> Iterator[Row]:
    """Seconds of a round, of its parts, and of the host's share, for one choice of widths.

    Rows have "target", "draft", "verify_width", "draft_width", "depth", "round_ms", "verify_ms", "draft_ms",
    "host_us", "floor_ms_computed".

    Raises:
        NotThere: there are no such rounds yet.
    """
    if find_spec(HOME) is None:
        raise NotThere(f"not there: {HOME}")
    raise NotThere("not there: measure_rounds is to be written")
    yield {}
