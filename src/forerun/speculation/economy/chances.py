"""What a drafter's rounds bring, learnt from its guesses and what came. No clock: times are passed in."""

from collections.abc import Sequence
from math import exp
from typing import Final, Literal, get_args

from forerun.speculation.tree import TokenTree

FORGETTING: Final = 0.95  # factor on the weight of older rounds, per round
FEWEST: Final = 6  # rounds before a drafter is compared: one can be luck
FEWEST_WEIGHT: Final = (1.0 - FORGETTING**FEWEST) / (1.0 - FORGETTING) - 1e-9  # what so many rounds weigh
KNOWN_ROUNDS: Final = 16.0  # rounds that the speed kept from an earlier start counts as
STALL: Final = 3.0  # times the mean time of a proposal that one counts as at most: longer is other load
UNPROVED: Final = 0.25  # share of the chances of a drafter's first guesses that is believed
DOUBT: Final = 4.0  # accepted tokens that a drafter's chances are believed for in advance
TemperatureClass = Literal["greedy", "below 1", "1 and above"]
TEMPERATURE_CLASSES: Final[tuple[TemperatureClass, ...]] = get_args(TemperatureClass)


def class_of(temperature: float) -> TemperatureClass:
    """The class of temperatures within which one drafter is the fastest."""
    return "greedy" if temperature == 0.0 else "below 1" if temperature < 1.0 else "1 and above"


class Trust:
    """The share of the expected tokens of verified trees that came true.

    A drafter's chances are learnt by kind of guess; what is verified is what seems likeliest, so that errors of the
    chances add up there. With few recent expectations they count as right by the share `first`, so that no error lasts
    for ever.
    """

    def __init__(self, first: float = 1.0) -> None:
        self._first, self._expected, self._accepted = first, 0.0, 0.0

    @property
    def factor(self) -> float:
        """Factor on the chances of nodes, at most 1."""
        return min(1.0, (self._accepted + self._first * DOUBT) / (self._expected + DOUBT))

    def measure(self, num_expected: float, num_accepted: int) -> None:
        """Take a round: the expected number of accepted nodes, and the actual one."""
        self._expected = FORGETTING * self._expected + num_expected
        self._accepted = FORGETTING * self._accepted + num_accepted


class DraftRecord:
    """Recent rounds of one drafter, drafted or only watched, at one class of temperatures.

    Times are in plain rounds, so that other load on the machine does not change what is known.

    Args:
        known: tokens in the time of a plain round, from an earlier start.
    """

    def __init__(self, known: float | None = None) -> None:
        self._rounds = 0.0 if known is None else KNOWN_ROUNDS
        self._tokens, self._times = self._rounds * (known or 0.0), self._rounds
        self._first_trust = Trust(UNPROVED)  # in chances of first tokens
        self._guess: TokenTree | None = None

    @property
    def is_known(self) -> bool:
        """Whether there are enough rounds to compare it."""
        return self._rounds >= FEWEST_WEIGHT

    @property
    def speed(self) -> float:
        """Tokens in the time of a plain round; 0 before the first round."""
        return self._tokens / self._times if self._times else 0.0

    def measure(self, num_tokens: float, times: float, num_rounds: int = 1) -> None:
        """Take some rounds together: their tokens, and their time in plain rounds."""
        fading = FORGETTING**num_rounds
        self._tokens = fading * self._tokens + num_tokens
        self._times = fading * self._times + times
        self._rounds = fading * self._rounds + num_rounds

    def burden(self, times: float) -> None:
        """Add to the time of its last round what that round made others take longer, in plain rounds."""
        self._times += times

    def chance_of_first(self, guess: TokenTree) -> float:
        """That one of the guesses of the next token is right: the drafter's own chance, as far as it has proved."""
        return self._first_trust.factor * chance_of_first(guess)

    def prove(self, guess: TokenTree, token_id: int) -> None:
        """Compare the guesses of the next token with the one that came."""
        self._first_trust.measure(chance_of_first(guess), len(guess.descend([token_id])))

    @property
    def is_watched(self) -> bool:
        """Whether a guess waits for the text that shows what it is worth."""
        return self._guess is not None

    def watch(self, guess: TokenTree | None, times: float = 0.0) -> None:
        """Compare a tree that is not verified with the text to come; None: with none, as the text has ended.

        Args:
            times: what its round would have taken.
        """
        self._guess, self._guess_times, self._followed = guess, times, list[int]()

    def follow(self, token_ids: Sequence[int]) -> None:
        """Take the text that came: once it has left the watched tree, what that round would have brought is known."""
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
    """That one of the tree's guesses of the next token is right, as its drafter has it."""
    children = zip(guess.log_probs, guess.parents, strict=True)
    return min(1.0, sum(exp(value) for value, parent in children if parent == 0))
