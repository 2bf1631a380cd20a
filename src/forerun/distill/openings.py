"""How the texts begin that a target writes: with a user's turn that it makes up, a question of a file, or nothing."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.errors import ConfigError
from forerun.distill.writer import Opening
from forerun.text.tokenizer import Tokenizer

TEMPERATURES: Final = (0.0, 0.6, 1.0)  # of answers, a third of the texts each
ANSWER_TOKENS: Final = 224
OWN_TURN_TOKENS: Final = 96  # about, of a turn that the target writes for the user
QUESTION_TOKENS: Final = 512  # of a question at most; longer ones are left out
OWN_SHARE: Final = 0.4  # of the texts begin with the target's own question where there are others
MARK: Final = "\x01"  # in the place of a message: no template and no vocabulary has a word with it


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFrame:
    """A chat template around a user's message.

    Args:
        before, after: token ids; the first of `after` ends the message.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


def turn_frame(tokenizer: Tokenizer) -> TurnFrame:
    """What the tokenizer's chat template puts around a user's message.

    Raises:
        ConfigError: the template refuses such a message, or changes it.
    """
    ids = tokenizer.apply_chat_template([{"role": "user", "content": MARK}])
    mark = tokenizer.encode(MARK, add_special_tokens=False)[-1]
    if ids.count(mark) != 1:
        raise ConfigError(
            "the target's chat template changes a user's message, so that no turn can be opened for it: "
            "give questions with --questions"
        )
    place = ids.index(mark)
    return TurnFrame(before=tuple(ids[:place]), after=tuple(ids[place + 1 :]))


def openings(
    tokenizer: Tokenizer, questions: Sequence[str], start: int | None, order: random.Random
) -> Iterator[Opening]:
    """Openings without end.

    Args:
        questions: of users; may be empty.
        start: the token that a text without a chat template begins with; None: any token.
    """
    frame = turn_frame(tokenizer) if tokenizer.has_chat_template else None
    while True:
        temperature = order.choice(TEMPERATURES)
        if questions and order.random() >= OWN_SHARE:
            ids = question_ids(tokenizer, order.choice(questions))
            if len(ids) <= QUESTION_TOKENS:
                yield Opening(token_ids=ids, temperature=temperature, length=len(ids) + ANSWER_TOKENS)
        elif frame is not None:
            length = len(frame.before) + OWN_TURN_TOKENS + len(frame.after) + ANSWER_TOKENS
            yield Opening(token_ids=frame.before, turn=frame.after, temperature=temperature, length=length)
        else:
            first = order.randrange(len(tokenizer.vocabulary())) if start is None else start
            # A base model without a start at temperature 0 would write one text again and again.
            yield Opening(token_ids=(first,), temperature=max(temperature, 0.6), length=1 + ANSWER_TOKENS)


def question_ids(tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
    if tokenizer.has_chat_template:
        return tuple(tokenizer.apply_chat_template([{"role": "user", "content": question}]))
    return tuple(tokenizer.encode(question))
