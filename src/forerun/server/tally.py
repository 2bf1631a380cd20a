"""What was read and written of one text, whether it came to its end or not."""

from dataclasses import replace

from forerun.core.steps import DecodeStep, PrefillStep, StepStats


class TextTally:
    """Counts one text as it grows. Belongs to the engine's thread until the text is over.

    Args:
        num_prompt: tokens of its prompt.
    """

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self.num_read = self.num_reused = self.num_written = 0
        self.rounds: list[StepStats] = []

    def read(self, part: PrefillStep) -> None:
        """A part of the prompt was read."""
        self.num_read, self.num_reused = part.num_read, part.num_reused

    def write(self, step: DecodeStep) -> None:
        """A round was played. Tokens that were accepted beyond the end of the text are in nobody's text."""
        num_new, stats = len(step.token_ids), step.stats
        self.num_read = self._num_prompt
        self.num_written += num_new
        self.rounds.append(stats if stats.num_accepted <= num_new else replace(stats, num_accepted=num_new))
