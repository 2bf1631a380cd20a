"""SwiftSpec's pairs of models, and the figures that it published for them (arXiv 2506.11309, table 7 and section 4;
and the README of its repository, for depth, split and speed of each pair).

Table 7 is of Qwen2-72B with Qwen2-1.5B on 8xH800: tokens/s, milliseconds of a target and of a draft pass, and the
acceptance length, a mean over six data sets. The paper says neither whether a length counts the bonus token nor how
many expansions a round has, and its numbers admit two readings.

* lengths without the bonus token, one expansion a draft time: three expansions in a serial round and 1.6 ms beside them
  give the 200 tokens/s; five in a parallel round give more than the target's time;
* lengths with it, two expansions a draft time: four in a serial round give 203 tokens/s without anything beside them,
  and five in a parallel round hide behind the target.

Under the first a serial round of three levels cannot accept 3.63 tokens, which only the second explains.
"""

from dataclasses import dataclass, replace
from typing import Final

from forerun.checkpoints.known_models import known_models
from forerun.core.errors import ConfigError
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.roofline import Machine, SizedModel, roofline_profile

UNITS: Final = 8
DRAFTS_TIMED: Final = ("Qwen2-1.5B", "R1-Distill-Qwen-1.5B")  # the draft of table 7, and one with passes of its sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row of the README: a mean over six data sets, greedy, weights int4 (AWQ), on 8xH800.

    Args:
        name: as SwiftSpec's commands name the pair; `other_names` are further spellings.
        target, draft: names of known models.
        target_units: GPUs of the target, by README and section 4.3.1; the draft has the rest of eight. Table 9 of the
            paper has two of them the other way round: 4 for Qwen2-72B, 6 for R1-Distill-Qwen-32B.
        depth: draft passes in a round.
        verify_width, draft_width: rows of a target pass and of a draft pass.
        tokens_per_s: with parallel drafting.
        serial_tokens_per_s: with serial drafting on all eight GPUs, published for one pair. No pair has a published
            speed of plain decoding.
    """

    name: str
    other_names: tuple[str, ...] = ()
    target: str
    draft: str
    target_units: int
    depth: int
    verify_width: int = 8
    draft_width: int = 8
    tokens_per_s: float
    serial_tokens_per_s: float | None = None

    @property
    def draft_units(self) -> int:
        return UNITS - self.target_units


PAIRS: Final = (
    Pair(
        name="llama3.3",
        target="Llama-3.3-70B",
        draft="Llama-3.2-3B",
        target_units=4,
        depth=6,
        tokens_per_s=369.0,
    ),
    Pair(
        name="llama3",
        target="Llama-3-70B",
        draft="Llama-3.2-3B",
        target_units=4,
        depth=6,
        tokens_per_s=347.0,
    ),
    Pair(
        name="deepseek",
        target="deepseek-coder-33b",
        draft="deepseek-coder-1.3b",
        target_units=6,
        depth=5,
        tokens_per_s=472.0,
    ),
    Pair(
        name="qwen2",
        other_names=("qwen",),
        target="Qwen2-72B",
        draft="Qwen2-1.5B",
        target_units=6,
        depth=5,
        tokens_per_s=274.0,
        serial_tokens_per_s=200.0,
    ),
    Pair(
        name="r1-qwen",
        other_names=("r1qwen",),
        target="R1-Distill-Qwen-32B",
        draft="R1-Distill-Qwen-1.5B",
        target_units=4,
        depth=5,
        tokens_per_s=317.0,
    ),
    Pair(
        name="r1-llama",
        other_names=("r1llama",),
        target="R1-Distill-Llama-70B",
        draft="R1-Distill-Llama-8B",
        target_units=4,
        depth=5,
        tokens_per_s=268.0,
    ),
)


def pair_named(name: str) -> Pair:
    """The pair of this name, in any case.

    Raises:
        ConfigError: there is none.
    """
    for pair in PAIRS:
        if name.lower() in (pair.name, *pair.other_names):
            return pair
    raise ConfigError(f"no pair of SwiftSpec is named {name!r}: choose among {', '.join(pair.name for pair in PAIRS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReading:
    """What table 7 may mean.

    Args:
        accepted: tokens a serial round, without the bonus token.
        num_expansions: that a draft time is the time of.
    """

    accepted: float
    num_expansions: int


READINGS: Final = (TableReading(accepted=3.63, num_expansions=1), TableReading(accepted=2.63, num_expansions=2))


def profile_of(pair: Pair, machine: Machine, reading: TableReading) -> Profile:
    """Projected times of a pair, with the draft's published ones read in this way."""
    anchors = [
        replace(anchor, ms=anchor.ms / reading.num_expansions) if anchor.model in DRAFTS_TIMED else anchor
        for anchor in machine.anchors
    ]
    target, draft = (SizedModel(name=name, spec=known_models()[name]) for name in (pair.target, pair.draft))
    return roofline_profile(replace(machine, anchors=anchors), target, draft)
