"""How long it pays to wait for a drafter, and when to stop believing in it. No clock: times are told."""

from typing import Final

from forerun.drafting.remote.protocol import blend

FLOOR_S: Final = 0.005  # scheduling noise of a busy machine
RESPONSES: Final = 4.0  # a drafter that takes so many times longer than it usually does is late
STEPS: Final = 2.0  # no wait is longer than so many steps of the target, its floor apart
FIRST_GAIN: Final = 1.0  # tokens per round that a drafter is thought to be worth before anything is known
FORGIVENESS: Final = 0.02  # how fast the gain is given up for lack of news of it
SILENCE_S: Final = 2.0  # a drafter that says nothing for so long hangs
GAPS: Final = 5.0  # ... unless it has been silent for a time of this order before and came back
MAX_SILENCE_S: Final = 10.0


class Patience:
    """Running means of one drafter's speed and worth; all times in seconds.

    A deadline is a multiple of what was measured, so a drafter on a starved machine is slow, not dead. After one missed
    deadline nothing is waited for until a proposal comes in time by itself: a stopped drafter costs one wait.
    """

    def __init__(self) -> None:
        self.step_s = 0.0  # the target's time for one proposal
        self.response_s = 0.0  # from a verdict to the answer that had to be waited for
        self.gain = FIRST_GAIN  # accepted tokens per answer where there was nothing before
        self.is_late = False
        self._longest_gap_s = 0.0

    def measure_step(self, elapsed_s: float) -> None:
        """The target took this long for a round."""
        self.step_s = blend(self.step_s, elapsed_s) if self.step_s else elapsed_s

    def measure_response(self, elapsed_s: float) -> None:
        """The drafter took this long to answer."""
        self.response_s = blend(self.response_s, elapsed_s) if self.response_s else elapsed_s

    def miss_deadline(self, waited_s: float) -> None:
        """An answer did not come in this time: it takes longer than was thought, and is not waited for any more."""
        self.is_late = True
        self.measure_response(max(self.response_s, 2.0 * waited_s))

    def measure_gain(self, num_accepted: int) -> None:
        """An answer that was waited for with nothing at hand yielded so many tokens beside the bonus token."""
        self.gain = blend(self.gain, num_accepted)

    def wait_s(self, value: float, promise: float) -> float:
        """How long to wait for an answer rather than to verify what is there.

        Args:
            value: expected tokens of what is there, beside the bonus token.
            promise: the chance that the text reaches what another expansion would expand; 1 where there is nothing.

        A wait of r before a step of t pays when (1 + value + gain * promise) / (t + r) exceeds (1 + value) / t.
        """
        if self.is_late:
            return 0.0
        if self.response_s * (1.0 + value) > self.step_s * self.gain * promise:
            self.gain += FORGIVENESS * (FIRST_GAIN - self.gain)  # or one bad stretch would end all waiting
            return 0.0
        return max(FLOOR_S, min(RESPONSES * self.response_s or float("inf"), STEPS * self.step_s))

    def is_hung(self, silent_s: float) -> bool:
        """True when a drafter at work has been silent for too long."""
        return silent_s > max(SILENCE_S, min(GAPS * self._longest_gap_s, MAX_SILENCE_S))

    def hear(self, silent_s: float) -> None:
        """The drafter has said something after a silence."""
        self._longest_gap_s = max(self._longest_gap_s, silent_s)
