"""Paced devices: `paced:...` sets the shortest time of each forward pass, to simulate accelerators."""

import re
from dataclasses import dataclass
from math import inf

from forerun.core.errors import ConfigError

PACED = "paced"
EXAMPLE = "paced:target=10.4ms@8,13.3ms@16;draft=1.9ms"
SECONDS_OF = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
ENTRY = re.compile(r"(?P<number>[^@]*?)(?P<unit>ms|us|s)(@(?P<rows>.*))?")
BARE_ROWS = 64  # rows of a time without @ROWS: the time of such narrow passes is mostly that of reading the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The shortest time of a forward pass by its number of rows.

    Args:
        steps: (most rows, seconds) of each size of pass; rows rise, seconds do not fall.
    """

    steps: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise refusal("a pace without any time")
        last_rows = 0
        last_s = 0.0
        for rows, seconds in self.steps:
            if rows <= last_rows:
                raise refusal(f"{rows} rows after {last_rows} in a pace, where rows must rise from at least 1")
            if not 0.0 < seconds < inf:
                raise refusal(f"{seconds} s for a pass of {rows} rows, which must be finite and more than 0")
            if seconds < last_s:
                raise refusal(f"{seconds} s for {rows} rows, less than the {last_s} s for {last_rows} rows")
            last_rows = rows
            last_s = seconds

    def step_s(self, num_rows: int) -> float:
        """Seconds of one pass, by the smallest size with enough rows, or by several passes of the largest size."""
        most_rows, longest_s = self.steps[-1]
        if num_rows > most_rows:
            return -(-num_rows // most_rows) * longest_s
        return next(seconds for rows, seconds in self.steps if num_rows <= rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The torch device of the models, and their paces; None: no pace."""

    torch_device: str
    target: Pace | None = None
    draft: Pace | None = None

    @property
    def is_paced(self) -> bool:
        return self.target is not None or self.draft is not None


def read_device(text: str) -> Placement:
    """Parse a device text.

    A torch device stands for itself. The paced form is `paced:SIDE=...;SIDE=...` in any order: target= and draft= take
    `TIME@ROWS,...` with times in s, ms or us, or a single TIME; on= takes the torch device, "cpu" when left out.

    Raises:
        ConfigError: the text begins with "paced" but is not valid.
    """
    kind, _, rest = text.partition(":")
    if kind != PACED:
        return Placement(torch_device=text)
    sides: dict[str, str] = {}
    for side in rest.split(";"):
        name, _, value = (part.strip() for part in side.partition("="))
        if name not in ("target", "draft", "on") or not value:
            raise refusal(f"{side!r} in device {text!r}, where target=, draft= or on= with a value is needed")
        if name in sides:
            raise refusal(f"{name}= twice in device {text!r}, where once is enough")
        sides[name] = value
    torch_device = sides.pop("on", "cpu")
    if torch_device.partition(":")[0] == PACED:
        raise refusal(f"on={torch_device}, where a torch device such as cuda:0 is needed")
    if not sides:
        raise refusal(f"device {text!r} without target= or draft=")
    return Placement(torch_device=torch_device, **{name: read_pace(value) for name, value in sides.items()})


def read_pace(text: str) -> Pace:
    """Parse `TIME@ROWS,...` in any order, or a single TIME, which is for BARE_ROWS rows."""
    entries = [read_entry(entry.strip()) for entry in text.split(",")]
    if len(entries) == 1:
        ((rows, seconds),) = entries
        return Pace(steps=((BARE_ROWS if rows is None else rows, seconds),))
    steps = [(rows, seconds) for rows, seconds in entries if rows is not None]
    if len(steps) < len(entries):
        raise refusal(f"a time without @ROWS among others in {text!r}, which only a single time may lack")
    return Pace(steps=tuple(sorted(steps)))


def read_entry(text: str) -> tuple[int | None, float]:
    """Rows and seconds of `TIME@ROWS`; rows are None for a bare TIME."""
    match = ENTRY.fullmatch(text)
    try:
        if match is None:
            raise ValueError("it needs a unit: s, ms or us")
        rows = None if match["rows"] is None else int(match["rows"])
        return rows, float(match["number"]) * SECONDS_OF[match["unit"]]
    except ValueError as error:
        raise refusal(f"{text!r}, which is not TIME or TIME@ROWS ({error})") from error


def refusal(seen: str) -> ConfigError:
    """The error for a text or value that is not a valid pace."""
    return ConfigError(f"{seen}: write it like {EXAMPLE}")
