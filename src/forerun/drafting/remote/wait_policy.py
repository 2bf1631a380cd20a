"""Decides how long to wait for a proposal. Times are passed in."""

from dataclasses import dataclass

from forerun.drafting.remote.estimates import blend


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSettings:
    """Limits of a wait, chosen by hand; only the rule of `wait_s` was measured (docs/log.md).

    Args:
        floor_s: the shortest wait, in seconds, because of scheduling noise on a busy machine.
        response_factor: the longest wait as a multiple of the drafter's usual response time.
        step_factor: the longest wait as a multiple of the target's step, unless `floor_s` is longer.
        first_gain: initial estimate of accepted tokens per awaited answer.
        recovery: each round without a wait moves the gain this share of the way back to `first_gain`.
    """

    floor_s: float = 0.005
    response_factor: float = 4.0
    step_factor: float = 2.0
    first_gain: float = 1.0
    recovery: float = 0.02


WAITING = WaitSettings()


class WaitPolicy:
    """Decides by running means of one drafter's speed and gain; all times in seconds.

    A deadline is a multiple of measured times, so a drafter on a busy machine counts as slow, not as failed. After one
    missed deadline there are no waits until a proposal arrives in time without one, so a stopped drafter costs only
    one wait.
    """

    def __init__(self, settings: WaitSettings = WAITING) -> None:
        self._settings = settings
        self.step_s = 0.0  # the target's time for one proposal
        self.response_s = 0.0  # time from a verdict to its awaited answer
        self.gain = settings.first_gain  # accepted tokens per answer when there was nothing else to verify
        self.is_late = False

    def measure_step(self, elapsed_s: float) -> None:
        """Record how long the target took for a round."""
        self.step_s = blend(self.step_s, elapsed_s)

    def measure_response(self, elapsed_s: float) -> None:
        """Record how long the drafter took to answer."""
        self.response_s = blend(self.response_s, elapsed_s)

    def miss_deadline(self, waited_s: float) -> None:
        """Record a missed deadline: raise the estimated response time and stop waiting."""
        self.is_late = True
        self.measure_response(max(self.response_s, 2.0 * waited_s))

    def measure_gain(self, num_accepted: int) -> None:
        """Record the accepted tokens of an awaited answer when there was nothing else to verify."""
        self.gain = blend(self.gain, num_accepted)

    def wait_s(self, num_expected: float, expansion_gain: float) -> float:
        """How long to wait for an answer before verifying the current tree.

        Args:
            num_expected: expected tokens of the current tree, without the bonus token.
            expansion_gain: expected tokens that the next expansion adds to the proposal; 1 without a tree.

        A wait of r before a step of t pays off if (1 + num_expected + gain * expansion_gain) / (t + r) exceeds
        (1 + num_expected) / t.
        """
        settings = self._settings
        if self.is_late:
            return 0.0
        if self.response_s * (1.0 + num_expected) > self.step_s * self.gain * expansion_gain:
            # Without this, a series of low gains would end all waits.
            self.gain += settings.recovery * (settings.first_gain - self.gain)
            return 0.0
        longest_s = min(settings.response_factor * self.response_s or float("inf"), settings.step_factor * self.step_s)
        return max(settings.floor_s, longest_s)
