"""What flows up from the decode loop: one vocabulary for the stream, the metrics and every report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forerun.core.timing import Span

PREDICTION: Final = "prediction"  # the user's, as the guesser of tokens
PLAIN: Final = "none"  # as who drafted a round: nothing was proposed


class FinishReason(StrEnum):
    """Why a text ended: a stop token or string, the length limit, or the caller."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class DrafterState(StrEnum):
    """Ready; late: its proposals come too late and are not waited for; down: it is not there, and is brought back;
    paused: a plain round was timed instead."""

    READY = "ready"
    LATE = "late"
    DOWN = "down"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStep:
    """How far the prompt has been read: `num_read` of `num_tokens`, of which `num_reused` were in the cache already.

    The last token is no part of it: it belongs to the first round.
    """

    num_read: int
    num_tokens: int
    num_reused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessers:
    """Who guessed the nodes of a tree: those of its chain of looked-up text, and the others, which a drafter grew."""

    grown: str
    chain: str


DRAFTED: Final = Guessers(grown="draft", chain="lookup")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedTree:
    """A tree that was verified, as it was drafted: parents come before children, and node 0 is the root.

    Args:
        path: indices of the accepted nodes from below the root down.
        chain: the tokens of looked-up text that was hung below the root, of which the tree may hold the first ones.
        guessers: who guessed the tokens of that chain, and the others.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    chain: tuple[int, ...] = ()
    guessers: Guessers = DRAFTED

    @property
    def sources(self) -> tuple[str, ...]:
        """Who guessed each node: "draft", "lookup", "recycled" or "prediction"; "" is the root's.

        What looked-up text and a draft both name counts as looked up: the text was there first. A drafter in another
        process looks up the same text, so that what it found there is known here too.
        """
        found = ["", *[self.guessers.grown] * (len(self.token_ids) - 1)]
        here, left = 0, list(reversed(self.chain))
        for node in range(1, len(self.token_ids)):
            if left and self.parents[node] == here and self.token_ids[node] == left[-1]:
                found[node], here = self.guessers.chain, node
                left.pop()
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """One round in numbers.

    Args:
        num_drafted: nodes of the proposal, root left out.
        num_verified: rows of the target's forward, root included.
        num_accepted: nodes that the target chose too, without the bonus token.
        num_near_ties: emitted tokens whose score led the next one by less than the numerical noise of this dtype.
        draft_s: seconds until the proposal was there.
        verify_s: seconds of the target's pass and of what is chosen from it.
        was_hit: the bonus token was a node of the drafter's own tree, outside the proposal.
        wait_s: the part of draft_s in which this process waited for another one.
        drafter: how the drafter was when it proposed.
        spans: what target and drafter did in this round, as far as it is known by now.
        tree: None where nothing was drafted, and where only a GPU knows the tree.
        drafted_by: of several drafters the one that proposed, or "none"; "prediction" where the user's was followed;
            else empty where the engine has only one drafter.
    """

    num_drafted: int
    num_verified: int
    num_accepted: int
    num_near_ties: int
    draft_s: float
    verify_s: float
    was_hit: bool
    wait_s: float = 0.0
    drafter: DrafterState = DrafterState.READY
    spans: tuple[Span, ...] = ()
    tree: DraftedTree | None = None
    drafted_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """How likely a written token was, by the target's own distribution: before logit_bias, penalties, temperature and
    filters, as natural logarithms.

    Args:
        top: the likeliest tokens at its place with their logarithms, likeliest first, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One round's outcome: the first `stats.num_accepted` ids were drafted, the one after them is the bonus token.

    A stop may cut the ids short, of which the statistics of the round know nothing.

    Args:
        text: what these ids add to the text shown so far; text that may still turn out to be the start of a stop string
            is held back.
        finish: why the text ends with this step; None: it goes on.
        logprobs: one for each id; empty where `SamplingParams.logprobs` is None.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason | None
    stats: StepStats
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """How many times as fast as plain decoding a request was written: the time that plain decoding would have taken
    for its tokens, over the time that they took.

    low, high: the scatter of the plain rounds leaves the value between these, 95 times of 100.
    plain_token_s: seconds of a plain round, on all the cores that plain decoding would have.
    num_plain_rounds: number of timed plain rounds, among the drafted ones and right after them.
    """

    value: float
    low: float
    high: float
    plain_token_s: float
    num_plain_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStats:
    """A whole request in numbers.

    Args:
        num_prompt_tokens: of the prompt.
        num_reused_tokens: those of them that were in the cache already.
        num_new_tokens: of the answer, the one that ends it included.
        num_drafted, num_accepted, num_near_ties: of all rounds, see `StepStats`; without accepted tokens that the
            end of the text cut off.
        tokens_per_s: new tokens over decode_s: the prefill is left out.
        tokens_per_round: new tokens over rounds; 1 is plain decoding.
        hit_rate: share of rounds whose bonus token the drafter had in its tree, see `StepStats.was_hit`.
        prefill_s: seconds for the prompt.
        prompt_tokens_per_s: those that were not reused, over prefill_s; 0 where all were.
        first_token_s: from the request to its first token.
        decode_s: seconds of all rounds.
        draft_s, verify_s, wait_s: parts of decode_s, see `StepStats`.
        num_rounds_late, num_rounds_down: rounds in which the drafter was late, or not there; see `DrafterState`.
        num_outside: new tokens that the draft could not propose, since its vocabulary lacks them.
        num_predicted_accepted, num_predicted_rejected: tokens of the user's prediction that were drafted, and came true
            or not.
        rounds_by: rounds of each of several drafters, of "none" and of "prediction", most first; else empty where the
            engine has only one drafter.
        speedup: over plain decoding, with the bounds of its scatter; None where the engine does not measure it, where
            nothing was drafted, and where too little was measured.
    """

    num_prompt_tokens: int
    num_reused_tokens: int
    num_new_tokens: int
    num_rounds: int
    num_drafted: int
    num_accepted: int
    num_near_ties: int
    tokens_per_s: float
    tokens_per_round: float
    accepted_per_round: float
    hit_rate: float
    prefill_s: float
    prompt_tokens_per_s: float
    first_token_s: float
    decode_s: float
    draft_s: float
    verify_s: float
    wait_s: float
    num_rounds_late: int
    num_rounds_down: int
    num_outside: int = 0
    num_predicted_accepted: int = 0
    num_predicted_rejected: int = 0
    rounds_by: Mapping[str, int] = field(default_factory=dict)
    speedup: Speedup | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished text.

    Args:
        token_ids: with the one that ends the text, which is not part of `text`.
        seed: reproduces the text under any drafter.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    stats: GenerationStats
