"""Token counts of one text, whether it was finished or cancelled."""

from dataclasses import replace

from forerun.core.steps import DecodeStep, PrefillStep, StepStats


class TextTally:
    """Counts the tokens of one text. Only the engine's thread may use it until the text has ended.

    Args:
        num_prompt: number of prompt tokens.
    """

    def __init__(self, num_prompt: int) -> None:
        self._num_prompt = num_prompt
        self.num_read = self.num_reused = self.num_written = 0
        self.rounds: list[StepStats] = []

    def read(self, part: PrefillStep) -> None:
        """Count a part of the prompt that was read."""
        self.num_read, self.num_reused = part.num_read, part.num_reused

    def write(self, step: DecodeStep) -> None:
        """Count a round. Tokens that were accepted past the end of the text are not counted."""
        num_new, stats = len(step.token_ids), step.stats
        self.num_read = self._num_prompt
        self.num_written += num_new
        self.rounds.append(stats if stats.num_accepted <= num_new else replace(stats, num_accepted=num_new))
