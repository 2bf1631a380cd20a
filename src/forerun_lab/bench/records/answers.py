"""A contestant's answers: one turn with its times, and the record of a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.core.config import SamplingParams
from forerun.core.steps import SkipReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundColumns:
    """The `RoundNumbers` of rounds, which only our drafters report: columns of equal length, an entry per round."""

    num_drafted: tuple[int, ...]
    num_verified: tuple[int, ...]
    num_accepted: tuple[int, ...]
    draft_s: tuple[float, ...]
    verify_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    was_hit: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A text compared with the one of drafter `none`, token by token.

    first_difference: index of the first token that differs (or that only one text has); None if all are the same.
    margin: the logit of `none`'s token there minus that of its second choice; None if it is not known.
    is_near_tie: whether the margin is so small that rounding decides.
    """

    first_difference: int | None
    margin: float | None = None
    is_near_tie: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer and the arrival times of its tokens.

    Args:
        text: the answer.
        num_new_tokens: tokens of the answer.
        wall_s: seconds from the call to the last token, prefill included.
        token_ids: the answer's ids; empty if a peer does not report them.
        num_prompt_tokens: 0 if it is not known.
        emitted: tokens per arrival, an entry per round: the accepted ones and the bonus token. Their sum exceeds
            num_new_tokens if a stop cut the last round short. Empty if it is not known.
        emitted_at_s: arrival times in seconds since the call. Empty if they are not known.
        num_near_ties: tokens that rounding could have decided.
        rounds: None for peers.
        match: None if nothing was compared.
        skips: what a self-drafting target skips, and the search for it, at the answer's end; None for others.
    """

    text: str
    num_new_tokens: int
    wall_s: float
    token_ids: tuple[int, ...] = ()
    num_prompt_tokens: int = 0
    emitted: tuple[int, ...] = ()
    emitted_at_s: tuple[float, ...] = ()
    num_near_ties: int = 0
    rounds: RoundColumns | None = None
    match: Match | None = None
    skips: SkipReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One contestant's answer to one question; a line of a record file.

    Args:
        contestant: its name, for example "none", "draft_model" or "llama.cpp".
        dataset: name of the data set, for example "mt_bench".
        repeat: 0 for the first time the question was asked.
        started_at: seconds since the epoch.
    """

    question_id: int | str
    category: str
    contestant: str
    dataset: str
    temperature: float
    turns: tuple[Turn, ...]
    repeat: int = 0
    started_at: float = 0.0
    seed: int | None = None


class Contestant(Protocol):
    """Answers questions: one of our drafters, or a peer in a separate process."""

    name: str

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        """Answer a prompt; the text may be left empty if the ids are given."""
        ...

    def forget(self) -> None:
        """Empty the caches, so that the whole next prompt is computed."""
        ...

    def close(self) -> None: ...
