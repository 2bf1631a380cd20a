"""Estimates a drafter's speed from its guesses and the text that followed. Callers pass in times; no clock is read."""

from collections.abc import Sequence
from math import exp
from typing import Final, Literal, get_args

from forerun.speculation.referee.costs import RunningMean
from forerun.speculation.tree import TokenTree

FORGETTING: Final = 0.97  # factor on the weight of older rounds, per round
FEWEST: Final = 6  # rounds before a drafter is compared, since a single round can be luck
FEWEST_WEIGHT: Final = (1.0 - FORGETTING**FEWEST) / (1.0 - FORGETTING) - 1e-9  # weight of FEWEST rounds
MANY: Final = 24  # rounds after which a drafter's speed is no longer taken for bad luck
MANY_WEIGHT: Final = (1.0 - FORGETTING**MANY) / (1.0 - FORGETTING) - 1e-9  # weight of MANY rounds
LUCK: Final = 0.6  # standard deviation of one round's speed
KNOWN_ROUNDS: Final = 16.0  # weight, in rounds, of a speed measured before the last start
STALL: Final = 3.0  # cap on a proposal's time, in mean times: anything longer is due to other load
UNPROVED: Final = 0.25  # prior factor on the chances of a drafter's first tokens
DOUBT: Final = 4.0  # weight of the prior factor, in expected tokens
TemperatureClass = Literal["greedy", "below 1", "1 and above"]
TEMPERATURE_CLASSES: Final[tuple[TemperatureClass, ...]] = get_args(TemperatureClass)


def class_of(temperature: float) -> TemperatureClass:
    """The class of a temperature; which drafter is fastest is learnt separately for each class."""
    return "greedy" if temperature == 0.0 else "below 1" if temperature < 1.0 else "1 and above"


class Trust:
    """The share of the expected tokens of verified trees that were accepted.

    It corrects a drafter's chances: the nodes with the highest chances are verified, which are often those whose
    chances are too high. With few recent rounds the factor returns to its prior `first`, so that no error lasts.
    """

    def __init__(self, first: float = 1.0) -> None:
        self._first = first
        self._expected = 0.0
        self._accepted = 0.0

    @property
    def factor(self) -> float:
        """Factor by which to correct the chances of nodes, at most 1."""
        return min(1.0, (self._accepted + self._first * DOUBT) / (self._expected + DOUBT))

    def measure(self, num_expected: float, num_accepted: int) -> None:
        """Record a round: the expected number of accepted nodes, and the actual one."""
        self._expected = FORGETTING * self._expected + num_expected
        self._accepted = FORGETTING * self._accepted + num_accepted


class ProposalMeans:
    """Running means of one drafter's proposals: seconds, rows, and the chance that a first token is right."""

    def __init__(self) -> None:
        self.seconds, self.rows, self.hits = (RunningMean() for _ in range(3))
        self._is_first = True

    def time(self, seconds: float, reading_s: float) -> tuple[float, float]:
        """Record a proposal's time, of which `reading_s` were spent on new text.

        The first one may take several times as long as all later ones, so it is not part of the mean.

        Returns:
            its seconds, capped against other load; and the usual ones without the reading of text.
        """
        mean = self.seconds
        capped_s = min(seconds, STALL * mean.value + reading_s) if mean.value else seconds
        newest_s = max(0.0, capped_s - reading_s)
        is_first = self._is_first
        self._is_first = False
        if is_first:
            return capped_s, newest_s
        mean.add(newest_s)
        return capped_s, mean.value


class DraftRecord:
    """Recent rounds of one drafter, drafted or only watched, in one class of temperatures.

    Times are in units of a plain round's, so that other load on the machine does not change the estimates.

    Args:
        known: tokens in the time of a plain round, measured before the last start.
    """

    def __init__(self, known: float | None = None) -> None:
        self._rounds = 0.0 if known is None else KNOWN_ROUNDS
        self._tokens = self._rounds * (known or 0.0)
        self._times = self._rounds
        self._first_trust = Trust(UNPROVED)  # for the chances of first tokens
        self._guess: TokenTree | None = None

    @property
    def is_known(self) -> bool:
        """Whether there are enough rounds to compare this drafter."""
        return self._rounds >= FEWEST_WEIGHT

    @property
    def speed(self) -> float:
        """Tokens in the time of a plain round; 0 before the first round."""
        return self._tokens / self._times if self._times else 0.0

    @property
    def hoped_speed(self) -> float:
        """The speed plus, while there are few rounds, one standard deviation, since it may be low by bad luck."""
        return self.speed + (LUCK / self._rounds**0.5 if self._rounds < MANY_WEIGHT else 0.0)

    def may_reach(self, speed: float) -> bool:
        """Whether more trials may show that this drafter has this speed."""
        return self._rounds < MANY_WEIGHT and (not self.is_known or self.hoped_speed > speed)

    def measure(self, num_tokens: float, times: float, num_rounds: int = 1) -> None:
        """Record some rounds together: their tokens, and their time in plain rounds."""
        fading = FORGETTING**num_rounds
        self._tokens = fading * self._tokens + num_tokens
        self._times = fading * self._times + times
        self._rounds = fading * self._rounds + num_rounds

    def burden(self, times: float) -> None:
        """Add to the last round's time the delay that it caused in later rounds, in plain rounds."""
        self._times += times

    def chance_of_first(self, guess: TokenTree) -> float:
        """Chance that one of the guesses of the next token is right: the drafter's own, corrected by experience."""
        return self._first_trust.factor * chance_of_first(guess)

    def prove(self, guess: TokenTree, token_id: int) -> None:
        """Compare the guesses of the next token with the actual one."""
        self._first_trust.measure(chance_of_first(guess), len(guess.descend([token_id])))

    @property
    def is_watched(self) -> bool:
        """Whether a guess is still being compared with the text."""
        return self._guess is not None

    def watch(self, guess: TokenTree | None, times: float = 0.0) -> None:
        """From now on compare an unverified tree with the text to come; None: compare none, as the text has ended.

        Args:
            times: time that a round with this tree would have taken, in plain rounds.
        """
        self._guess = guess
        self._guess_times = times
        self._followed = list[int]()

    def told(self, token_ids: Sequence[int]) -> None:
        """Compare the watched tree with new text; when the text leaves it, record the round it would have been."""
        if self._guess is None:
            return
        if not self._followed:
            self.prove(self._guess, token_ids[0])
        self._followed += token_ids
        nodes = self._guess.descend(self._followed)
        if len(nodes) < len(self._followed) or nodes[-1] not in self._guess.parents:
            tokens = min(len(nodes), len(self._followed)) + 1
            self.measure(tokens, self._guess_times)
            self._guess = None


def chance_of_first(guess: TokenTree) -> float:
    """Chance that one of the tree's guesses of the next token is right, by the drafter's own estimate."""
    children = zip(guess.log_probs, guess.parents, strict=True)
    return min(1.0, sum(exp(value) for value, parent in children if parent == 0))
