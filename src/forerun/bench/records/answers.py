"""What a contestant answers: one turn with its times, and its record of a question."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.core.config import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundColumns:
    """Data on rounds that only our drafters report: columns of one length, an entry per round.

    num_drafted leaves out the root, num_verified counts it, num_accepted leaves out the bonus token.
    """

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

    first_difference: index of the first token that differs (or that only one text has); None where all are the same.
    margin: the lead of `none`'s token over its next best there, in logits; None where it is not known.
    is_near_tie: the margin is so small that rounding decides.
    """

    first_difference: int | None
    margin: float | None = None
    is_near_tie: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One answer and when its tokens came.

    Args:
        text: the answer.
        num_new_tokens: tokens of the answer.
        wall_s: seconds from the call until the last token was there, prefill included.
        token_ids: the answer's ids; empty in records of others that hold none.
        num_prompt_tokens: 0 where it is not known.
        emitted: tokens that came at a time, an entry per round: the accepted ones and the bonus token. Their sum may
            exceed num_new_tokens where a stop cut the last round short. Empty where it is not known.
        emitted_at_s: when they came, seconds since the call. Empty where it is not known.
        num_near_ties: tokens that rounding could have decided.
        rounds: None for peers.
        match: None where nothing was compared.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One contestant's answer to one question; a line of a record file.

    Args:
        contestant: who answered, for example "none", "draft_model" or "llama.cpp".
        dataset: name of the data set, for example "mt_bench".
        repeat: 0 for the first time the question was put.
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
    """What answers questions: one of our drafters, or a peer in a separate process."""

    name: str

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        """Answer; the text may be left empty, since ids say it all."""
        ...

    def forget(self) -> None:
        """Empty the caches, so that the next prompt is computed whole."""
        ...

    def close(self) -> None: ...
