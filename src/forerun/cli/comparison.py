"""Measures what drafting gains on this machine: two engines write the same answer, a few tokens each in turn.

So other load on the machine affects both in the same way, and both write the same easy and difficult parts of the text.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Final

from forerun.core.config import SamplingParams
from forerun.core.steps import LEAST_GAIN, PLAIN, Generation

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.stream import GenerationStream
    from forerun.text.prompt import Prompt

SLICE: Final = 16  # tokens: they take 0.1 to 0.2 s, less than most bursts of other load
FEWEST = 3  # least counted comparisons; the first one is discarded
MOST = 9  # most of them
ENOUGH_S: Final = 6.0  # no comparison starts after this time
SHOWN_ROWS: Final = 4  # rows of a small tree, whose cost `reason` names
COSTLY: Final = 2.5  # a pass of SHOWN_ROWS that costs this many plain passes explains why there is no gain


@dataclass(slots=True)
class Written:
    """The answers and times of one engine."""

    engine: "Engine"
    results: list[Generation] = field(default_factory=list)
    slices_s: list[list[float]] = field(default_factory=list)  # of each answer

    @property
    def seconds(self) -> float:
        """Seconds of an answer: the sum of each slice's median time, as a stall of the machine affects few slices."""
        return math.fsum(median(times) for times in zip(*self.slices_s, strict=False))


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """The answers and times of both engines in all comparisons."""

    plain: Written
    drafted: Written

    @property
    def num_tokens(self) -> int | None:
        """Tokens of the text; None if the two engines did not write the same text."""
        texts = {result.token_ids for side in (self.plain, self.drafted) for result in side.results}
        return len(texts.pop()) if len(texts) == 1 else None

    @property
    def ratios(self) -> list[float]:
        """How many times as fast drafting was, in each comparison."""
        pairs = zip(self.plain.slices_s, self.drafted.slices_s, strict=True)
        return [sum(plain) / sum(drafted) for plain, drafted in pairs]

    @property
    def ratio(self) -> float:
        """How many times as fast drafting is.

        A round takes at least as long as a plain pass, so the ratio cannot exceed the tokens per round: more than that
        is caused by other load on the machine, and is cut off.
        """
        per_round = median(result.stats.tokens_per_round for result in self.drafted.results)
        return min(self.plain.seconds / self.drafted.seconds, per_round)

    @property
    def gains(self) -> bool:
        """Whether drafting is faster by more than the comparisons scatter."""
        ratios = self.ratios
        scatter = 0.5 * (max(ratios) - min(ratios)) / math.sqrt(len(ratios))
        return self.ratio >= LEAST_GAIN and self.ratio - scatter > 1.0


def compare(
    plain: "Engine", drafting: "Engine", asked: "Prompt", params: SamplingParams, report: Callable[[int, int], None]
) -> SpeedComparison:
    """Let both engines write the answer until there are enough comparisons.

    The first comparison is discarded, because the automatic drafter tries its drafters in it. Texts are forgotten
    between answers, so that no answer is drafted from an earlier one.
    """
    sides = Written(plain), Written(drafting)
    began = perf_counter()
    number = 0
    while number <= MOST and (number <= FEWEST or perf_counter() - began < ENOUGH_S):
        report(min(number, FEWEST), 1 + FEWEST)
        both = [_begun(side.engine, asked, params) for side in sides]
        order = (0, 1) if number % 2 else (1, 0)
        times: tuple[list[float], list[float]] = [], []
        for num_tokens in _ends(both[0], params):
            for place in order:
                sides[place].engine.cores.place_pool()  # both engines share it, and may use other cores
                times[place].append(_slice_s(both[place], num_tokens))
        for side, stream, slices_s in zip(sides, both, times, strict=True):
            result = stream.result()
            if number:
                side.results.append(result)
                side.slices_s.append(slices_s)
        number += 1
    return SpeedComparison(*sides)


def let_forget(engine: "Engine") -> None:
    """Drop all texts from the engine and its drafter, but keep the measured speeds of the drafters."""
    engine.forget()
    engine.drafting.restore(b"")


def winner_of(found: SpeedComparison, name: str) -> str:
    """The name of the drafter, and of the one that drafted most if it chooses among several."""
    rounds = Counter[str]()
    for result in found.drafted.results:
        rounds += Counter(result.stats.rounds_by)
    del rounds[PLAIN]
    return f"{name}: {max(rounds, key=rounds.__getitem__)}" if rounds else name


def reason(drafting: "Engine", found: SpeedComparison) -> str:
    """Why drafting gains nothing here."""
    referee = drafting.drafting.referee
    if referee.weighs_costs:
        costs = referee.costs
        rows = min(SHOWN_ROWS, len(costs.pass_s))
        ratio = costs.step_s(rows) / costs.plain_s
        verifying = f"verifying {rows} tokens takes {ratio:.1f} times as long as writing one"
        if ratio >= COSTLY:
            return verifying
        return f"{verifying}, and too few tokens of this text can be guessed"
    per_round = median(result.stats.tokens_per_round for result in found.drafted.results)
    return f"a round with drafts gave {per_round:.1f} tokens, and takes longer than that many plain passes"


def _begun(engine: "Engine", asked: "Prompt", params: SamplingParams) -> "GenerationStream":
    """The stream of an answer, after its prompt was read."""
    let_forget(engine)
    stream = engine.stream(asked, params)
    for _ in stream.prefill():
        pass
    return stream


def _ends(stream: "GenerationStream", params: SamplingParams) -> Iterator[int]:
    """Numbers of tokens, of prompt and answer together, at which slices end."""
    first = stream.num_tokens
    most = params.max_new_tokens
    assert most is not None, "a length is set"
    yield from range(first + SLICE, first + most + SLICE, SLICE)


def _slice_s(stream: "GenerationStream", num_tokens: int) -> float:
    """Seconds until the text has this many tokens, or ends."""
    began = perf_counter()
    while stream.num_tokens < num_tokens and next(stream, None) is not None:
        pass
    return perf_counter() - began
