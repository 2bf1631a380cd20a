"""SwiftSpec's published figures that the planner is checked against (arXiv 2506.11309, table 7 and section 4; and the
README of its repository, for the speed of each pair of models).

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
from forerun_lab.planner.profile import Profile
from forerun_lab.planner.roofline import Machine, SizedModel, roofline_profile

UNITS: Final = 8
DRAFTS_TIMED: Final = ("Qwen2-1.5B", "R1-Distill-Qwen-1.5B")  # the draft of table 7, and one with passes of its sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row of the README: a mean over six data sets, greedy, weights int4 (AWQ), on 8xH800.

    Args:
        target_units: GPUs of the target, by README and section 4.3.1; the draft has the rest of eight. Table 9 of the
            paper has two of them the other way round: 4 for Qwen2-72B, 6 for R1-Distill-Qwen-32B.
    """

    target: str
    draft: str
    tokens_per_s: float
    target_units: int


PAIRS: Final = (
    Pair(target="Llama-3.3-70B", draft="Llama-3.2-3B", tokens_per_s=369.0, target_units=4),
    Pair(target="Llama-3-70B", draft="Llama-3.2-3B", tokens_per_s=347.0, target_units=4),
    Pair(target="deepseek-coder-33b", draft="deepseek-coder-1.3b", tokens_per_s=472.0, target_units=6),
    Pair(target="Qwen2-72B", draft="Qwen2-1.5B", tokens_per_s=274.0, target_units=6),
    Pair(target="R1-Distill-Qwen-32B", draft="R1-Distill-Qwen-1.5B", tokens_per_s=317.0, target_units=4),
    Pair(target="R1-Distill-Llama-70B", draft="R1-Distill-Llama-8B", tokens_per_s=268.0, target_units=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What table 7 may mean.

    Args:
        accepted: tokens a serial round, without the bonus token.
        num_expansions: that a draft time is the time of.
    """

    accepted: float
    num_expansions: int


READINGS: Final = (Reading(accepted=3.63, num_expansions=1), Reading(accepted=2.63, num_expansions=2))


def profile_of(pair: Pair, machine: Machine, reading: Reading) -> Profile:
    """Projected times of a pair, with the draft's published ones read in this way."""
    anchors = [
        replace(anchor, ms=anchor.ms / reading.num_expansions) if anchor.model in DRAFTS_TIMED else anchor
        for anchor in machine.anchors
    ]
    target, draft = (SizedModel(name=name, spec=known_models()[name]) for name in (pair.target, pair.draft))
    return roofline_profile(replace(machine, anchors=anchors), target, draft)
