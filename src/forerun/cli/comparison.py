"""What drafting gains on this machine: the same answer by two engines, a few tokens of each in turn.

What else the machine does then meets both, and a text is compared with itself: its easy stretches are easy for both.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

from forerun.core.config import SamplingParams
from forerun.core.steps import PLAIN, Generation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.stream import GenerationStream
    from forerun.text.prompt import Prompt

SLICE: Final = 16  # tokens: a tenth of a second or two, shorter than most other load lasts
FEWEST, MOST = 3, 9  # comparisons that count, the first one left out
ENOUGH_S: Final = 6.0  # after which no comparison starts
LEAST_GAIN: Final = 1.02  # what is less cannot be told from noise
SHOWN_ROWS: Final = 4  # in reasons: of a small tree
DEAR: Final = 2.5  # times a plain pass at which a pass of so many rows is the reason that nothing gains


@dataclass(slots=True)
class Written:
    """One side."""

    engine: "Engine"
    results: list[Generation] = field(default_factory=list)
    slices_s: list[list[float]] = field(default_factory=list)  # of each answer

    @property
    def seconds(self) -> float:
        """Of an answer, each slice at the median of its times: a stall of the machine is in few slices."""
        return math.fsum(median(times) for times in zip(*self.slices_s, strict=False))


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """Both sides of all comparisons."""

    plain: Written
    drafted: Written

    @property
    def num_tokens(self) -> int | None:
        """Of the text; None where the two sides did not write the same one."""
        texts = {result.token_ids for side in (self.plain, self.drafted) for result in side.results}
        return len(texts.pop()) if len(texts) == 1 else None

    @property
    def ratios(self) -> list[float]:
        """How many times as fast the drafted side was, comparison by comparison."""
        return [
            sum(plain) / sum(drafted)
            for plain, drafted in zip(self.plain.slices_s, self.drafted.slices_s, strict=True)
        ]  # fmt: skip

    @property
    def ratio(self) -> float:
        """How many times as fast the drafted side is; no round is shorter than a plain one, so that what exceeds the
        tokens of a round is other load on the machine."""
        per_round = median(result.stats.tokens_per_round for result in self.drafted.results)
        return min(self.plain.seconds / self.drafted.seconds, per_round)

    @property
    def gains(self) -> bool:
        """Whether drafting is faster, beyond what the scatter of the comparisons may bring."""
        ratios = self.ratios
        scatter = 0.5 * (max(ratios) - min(ratios)) / math.sqrt(len(ratios))
        return self.ratio >= LEAST_GAIN and self.ratio - scatter > 1.0


def compare(
    plain: "Engine", drafting: "Engine", asked: "Prompt", params: SamplingParams, report: Callable[[int, int], None]
) -> SpeedComparison:
    """Write the answer by both until enough is known.

    A first comparison is left out: in its answer the drafters are tried. No answer is drafted from the one before it.
    """
    sides = Written(plain), Written(drafting)
    began, number = perf_counter(), 0
    while number <= MOST and (number <= FEWEST or perf_counter() - began < ENOUGH_S):
        report(min(number, FEWEST), 1 + FEWEST)
        both = [_begun(side.engine, asked, params) for side in sides]
        order = (0, 1) if number % 2 else (1, 0)
        times: tuple[list[float], list[float]] = [], []
        for num_tokens in _ends(both[0], params):
            for place in order:
                sides[place].engine.cores.place_pool()  # which both share, and may have on other cores
                times[place].append(_slice_s(both[place], num_tokens))
        for side, stream, slices_s in zip(sides, both, times, strict=True):
            result = stream.result()
            if number:
                side.results.append(result)
                side.slices_s.append(slices_s)
        number += 1
    return SpeedComparison(*sides)


def let_forget(engine: "Engine") -> None:
    """Drop all texts, also what the drafter has of them, but not which drafter is the fastest."""
    engine.forget()
    engine.drafter.restore(b"")


def winner_of(found: SpeedComparison, name: str) -> str:
    """The name of the drafter, with the one of several that drafted most."""
    rounds = Counter[str]()
    for result in found.drafted.results:
        rounds += Counter(result.stats.rounds_by)
    del rounds[PLAIN]
    return f"{name}: {max(rounds, key=rounds.__getitem__)}" if rounds else name


def reason(drafting: "Engine", found: SpeedComparison) -> str:
    """Why drafting gains nothing here."""
    from forerun.drafting.automatic import AutomaticDrafter  # brings torch along

    drafter = drafting.drafter
    if isinstance(drafter, AutomaticDrafter):
        costs = drafter.chooser.costs
        rows = min(SHOWN_ROWS, len(costs.pass_s))
        dear = costs.step_s(rows) / costs.plain_s
        verifying = f"verifying {rows} tokens takes {dear:.1f} times as long as writing one"
        if dear >= DEAR:
            return verifying
        return f"{verifying}, and of this text too few tokens can be guessed"
    per_round = median(result.stats.tokens_per_round for result in found.drafted.results)
    return f"a round with drafts brought {per_round:.1f} tokens, and takes longer than so many without"


def _begun(engine: "Engine", asked: "Prompt", params: SamplingParams) -> "GenerationStream":
    """An answer whose prompt is read."""
    let_forget(engine)
    stream = engine.stream(asked, params)
    for _ in stream.prefill():
        pass
    return stream


def _ends(stream: "GenerationStream", params: SamplingParams) -> Iterator[int]:
    """Tokens at which slices end, of prompt and answer, until the text ends."""
    first, most = stream.num_tokens, params.max_new_tokens
    assert most is not None, "a length is set"
    yield from range(first + SLICE, first + most + SLICE, SLICE)


def _slice_s(stream: "GenerationStream", num_tokens: int) -> float:
    """Seconds until the text has so many tokens, or ends."""
    began = perf_counter()
    while stream.num_tokens < num_tokens and next(stream, None) is not None:
        pass
    return perf_counter() - began
