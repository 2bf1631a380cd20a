"""The beginnings of the texts that a target writes: the target's own user turn, a given question, or one token."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from forerun.core.errors import ConfigError, require
from forerun.text.tokenizer import Tokenizer
from forerun_lab.distill.writer import Opening

TEMPERATURES: Final = (0.0, 0.6, 1.0)  # of answers, each for a third of the texts
ANSWER_TOKENS: Final = 224
OWN_TURN_TOKENS: Final = 96  # approximate length of a turn that the target writes for the user
QUESTION_TOKENS: Final = 512  # longest question; longer ones are left out
OWN_SHARE: Final = 0.4  # share of texts that begin with the target's own question if questions are given
BASE_TEMPERATURE: Final = 0.6  # lowest for texts that begin alike: at 0 they would all be the same text
MARK: Final = "\x01"  # stands for a message: no template and no word of a vocabulary contains it


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFrame:
    """A chat template around a user's message.

    Args:
        before, after: token ids; the first of `after` ends the message.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Openings:
    """The beginnings of a target's texts.

    Args:
        frame: the template around a turn that the target writes for the user; None: it writes no such turn.
        questions: token ids of users' questions in the chat template.
        start: the first token of a text without a chat template; None: a random token.
        vocab_size: number of tokens.
        longest: most tokens of a text.
    """

    frame: TurnFrame | None
    questions: tuple[tuple[int, ...], ...]
    start: int | None
    vocab_size: int
    longest: int

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, questions: Sequence[str], stop_ids: Sequence[int], *, vocab_size: int, longest: int
    ) -> "Openings":
        """The openings of a target.

        Raises:
            ConfigError: its chat template refuses a user's message, or changes it and no questions are given, or every
                question is too long.
        """
        frame = turn_frame(tokenizer) if tokenizer.has_chat_template else None
        if tokenizer.has_chat_template and frame is None and not questions:
            raise ConfigError(
                "the target's chat template changes a user's message, so that no turn can be opened for it: "
                "give questions with --questions, or another template with --chat-template"
            )
        limit = min(QUESTION_TOKENS, longest // 2)
        ids = [question_ids(tokenizer, question) for question in questions]
        fitting = tuple(question for question in ids if 0 < len(question) <= limit)
        if questions and not fitting:
            raise ConfigError(f"none of {len(questions)} questions has {limit} tokens or fewer: give shorter ones")
        start = next(iter([*tokenizer.encode(""), *stop_ids]), None)
        return cls(frame=frame, questions=fitting, start=start, vocab_size=vocab_size, longest=longest)

    @property
    def given(self) -> tuple[tuple[int, ...], ...]:
        """Every token sequence that texts may begin with, and the one that follows a user's turn."""
        return self.questions if self.frame is None else (*self.questions, self.frame.before, self.frame.after)

    @property
    def prefix(self) -> tuple[int, ...]:
        """Tokens that most openings begin with."""
        if self.frame is None:
            return ()
        question = self.questions[0] if self.questions else self.frame.before
        num_alike = 0
        for left, right in zip(question, self.frame.before, strict=False):
            if left != right:
                break
            num_alike += 1
        return self.frame.before[:num_alike]

    def draw(self, order: random.Random) -> Iterator[Opening]:
        """An endless stream of random openings."""
        while True:
            temperature = order.choice(TEMPERATURES)
            if self.questions and (self.frame is None or order.random() >= OWN_SHARE):
                yield self._opening(order.choice(self.questions), (), temperature)
            elif self.frame is not None:
                yield self._opening(self.frame.before, self.frame.after, temperature)
            else:
                first = order.randrange(self.vocab_size) if self.start is None else self.start
                yield self._opening((first,), (), max(temperature, BASE_TEMPERATURE))

    def _opening(self, ids: tuple[int, ...], turn: tuple[int, ...], temperature: float) -> Opening:
        length = len(ids) + ANSWER_TOKENS + (OWN_TURN_TOKENS + len(turn) if turn else 0)
        return Opening(token_ids=ids, turn=turn, temperature=temperature, length=min(length, self.longest))


def turn_frame(tokenizer: Tokenizer) -> TurnFrame | None:
    """The tokens that the chat template puts around a user's message; None if it changes the message, or puts
    nothing before or nothing after it.

    Raises:
        ConfigError: the template refuses the message.
    """
    ids = tokenizer.apply_chat_template([{"role": "user", "content": MARK}])
    mark = tokenizer.encode(MARK, add_special_tokens=False)[-1:]
    if not mark or ids.count(mark[0]) != 1:
        return None
    place = ids.index(mark[0])
    before = tuple(ids[:place])
    after = tuple(ids[place + 1 :])
    return TurnFrame(before=before, after=after) if before and after else None


def question_ids(tokenizer: Tokenizer, question: str) -> tuple[int, ...]:
    if tokenizer.has_chat_template:
        return tuple(tokenizer.apply_chat_template([{"role": "user", "content": question}]))
    return tuple(tokenizer.encode(question))


def require_known(texts: Iterable[Sequence[int]], vocab_size: int) -> None:
    """Refuse texts with tokens that the target's embedding does not have.

    Raises:
        ConfigError: names such a token and the range of valid ids.
    """
    unknown = next((id_ for ids in texts for id_ in ids if id_ >= vocab_size), None)
    require(
        unknown is None,
        f"the target's tokenizer gives token id {unknown}, but the model has ids 0 to {vocab_size - 1}: "
        "put the tokenizer.json that belongs to it into its folder",
    )
