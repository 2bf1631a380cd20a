"""Convert questions to the token ids that every contestant reads, and choose those that fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.errors import ConfigError
from forerun.text.conversation import Conversation
from forerun.text.tokenizer import Tokenizer
from forerun_lab.bench.data.questions import Question

SEAM_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Converts questions to the target's token ids.

    Args:
        max_length: most tokens of all turns and answers together.
    """

    tokenizer: Tokenizer
    max_length: int

    def prompt_after(self, question: Question, answers: Sequence[str]) -> list[int]:
        """The ids of the turn that follows these answers, in the target's chat template if it has one."""
        conversation = Conversation(has_template=self.tokenizer.has_chat_template, system_prompt=None)
        for said, answer in zip(question.turns, answers, strict=False):
            conversation.add(said, answer)
        prompt = conversation.prompt(question.turns[len(answers)])
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else self.tokenizer.apply_chat_template(prompt)

    def room_for(self, question: Question, max_new_tokens: int) -> int:
        """The most tokens that all turns with answers of full length can take.

        An answer may have more ids when its text is tokenised again than when it was generated, so a quarter is added,
        and a few tokens for the places where it joins the text around it.
        """
        num_said = len(self.prompt_after(question, [""] * (len(question.turns) - 1)))
        return num_said + len(question.turns) * (max_new_tokens + max_new_tokens // 4 + SEAM_TOKENS)

    def choose(self, questions: Sequence[Question], num_wanted: int, max_new_tokens: int) -> "Choice":
        """Up to `num_wanted` questions that fit, evenly spaced in the file, and the other questions that fit.

        Raises:
            ConfigError: no question fits.
        """
        fitting = [question for question in questions if self.room_for(question, max_new_tokens) <= self.max_length]
        if not fitting:
            raise ConfigError(
                f"none of {len(questions)} questions fits with {max_new_tokens} new tokens a turn into a context of "
                f"{self.max_length}: lower --max-new-tokens, or raise --max-length if the model allows it"
            )
        measured = spread(fitting, num_wanted)
        taken = {question.question_id for question in measured}
        others = [question for question in fitting if question.question_id not in taken]
        return Choice(
            measured=tuple(measured),
            others=tuple(others),
            num_too_long=len(questions) - len(fitting),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The questions of one data set to measure, those left for tuning, and the number of those that are too long."""

    measured: tuple[Question, ...]
    others: tuple[Question, ...]
    num_too_long: int


def spread(questions: Sequence[Question], num_wanted: int) -> list[Question]:
    """Up to `num_wanted` questions, evenly spaced in the file, because files are sorted by category."""
    num_wanted = min(num_wanted, len(questions))
    return [questions[place * len(questions) // num_wanted] for place in range(num_wanted)]
