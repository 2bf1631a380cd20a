"""The results of the decode loop, used by the stream, the metrics and every report."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

PREDICTION: Final = "prediction"  # the source of tokens from the user's prediction
PLAIN: Final = "none"  # the drafter of a round without a proposal
LEAST_GAIN: Final = 1.02  # a smaller speed-up cannot be distinguished from noise
ENOUGH_ROUNDS: Final = 24  # in fewer rounds, a drafter that was not used may just not have begun
FEW: Final = 0.1  # share of all rounds: a drafter that was used in no more counts as unused


@dataclass(frozen=True, slots=True)
class Span:
    """A time span of work. Times are `time.perf_counter` seconds, the same clock for all processes of a host.

    lane: "target" or "draft", or "wait" while the target waits for the drafter and has nothing to verify.
    label: a word or two for a plot, such as rows, accepted tokens, "hit" or "miss".

    Positional arguments are allowed, because several spans are built in every round.
    """

    lane: str
    start_s: float
    end_s: float
    label: str = ""


class FinishReason(StrEnum):
    """Why a text ended: a stop token or string, the length limit, or the caller."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class DrafterState(StrEnum):
    """The state of a drafter in a round.

    LATE: its proposals arrive too late, and the target does not wait for them. DOWN: its process is lost, and is being
    restarted. PAUSED: a plain round was timed instead.
    """

    READY = "ready"
    LATE = "late"
    DOWN = "down"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillStep:
    """Progress of reading the prompt: `num_read` of `num_tokens`, of which `num_reused` were in the cache already.

    The last token is not counted, because the first round reads it.

    Args:
        logprobs: of the tokens after those that the last pass read, if `SamplingParams.prompt_logprobs` is set.
    """

    num_read: int
    num_tokens: int
    num_reused: int
    logprobs: tuple["TokenLogprob", ...] = ()

    def left_s(self, read_s: float) -> float | None:
        """Seconds until the prompt is read at this speed, if what is new of it took `read_s` so far; None: unknown."""
        num_new = self.num_read - self.num_reused
        return read_s * (self.num_tokens - self.num_read) / num_new if num_new > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessers:
    """The sources of a tree's nodes: of its chain of looked-up text, and of the other nodes, which a drafter grew."""

    grown: str
    chain: str


DRAFTED: Final = Guessers(grown="draft", chain="lookup")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedTree:
    """A tree that was verified, as it was drafted: parents come before children, and node 0 is the root.

    Args:
        path: indices of the accepted nodes from below the root down.
        chain: tokens of looked-up text below the root; the tree may hold only the first ones.
        guessers: the sources of that chain, and of the other nodes.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    chain: tuple[int, ...] = ()
    guessers: Guessers = DRAFTED

    @property
    def sources(self) -> tuple[str, ...]:
        """The source of each node: "draft", "lookup", "recycled" or "prediction"; "" for the root.

        A node guessed by both lookup and a draft counts as looked up, because lookup was first. A drafter in another
        process looks up the same text, so its looked-up tokens are known here too.
        """
        found = ["", *[self.guessers.grown] * (len(self.token_ids) - 1)]
        here = 0
        wanted = iter(self.chain)
        token_id = next(wanted, None)
        for node in range(1, len(self.token_ids)):
            if self.parents[node] == here and self.token_ids[node] == token_id:
                found[node] = self.guessers.chain
                here = node
                token_id = next(wanted, None)
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipReport:
    """The sublayers that a self-drafting target skips, and the search for them, at one moment; it serves all requests.

    Args:
        is_searching: better sets are still looked for; False: the search is done, or there is none.
        attention, mlp: the layers whose attention or MLP drafts skip now, ascending.
        matchness: share of the known tokens over which this set was scored that it guessed; None: it was not scored.
        hit_rate: share of the drafts with this set whose first token was right; None: nothing was drafted with it.
        num_scored: candidates scored; with the search "gated", windows of 32 tokens.
        search_s: seconds that the search has taken since the engine was opened.
    """

    is_searching: bool
    attention: tuple[int, ...]
    mlp: tuple[int, ...]
    matchness: float | None
    hit_rate: float | None
    num_scored: int
    search_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundNumbers:
    """One round in numbers, in the form that every output has: the stream's `StepStats`, the lines of `--json-lines`,
    the rounds of a timeline, and the records of `forerun bench run`, where each is a column.

    Args:
        num_drafted: nodes of the proposal, without the root.
        num_verified: rows of the target's forward, root included.
        num_accepted: accepted nodes, without the bonus token.
        draft_s: seconds until the proposal was ready.
        verify_s: seconds of the target's pass and of sampling.
        wait_s: the part of draft_s in which this process waited for another one.
        was_hit: whether the bonus token was a node of the drafter's own tree, outside the proposal.
    """

    num_drafted: int
    num_verified: int
    num_accepted: int
    draft_s: float
    verify_s: float
    wait_s: float = 0.0
    was_hit: bool

    def numbers(self) -> dict[str, Any]:
        """The numbers by their names."""
        return {field.name: getattr(self, field.name) for field in fields(RoundNumbers)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats(RoundNumbers):
    """A round: its numbers, and more.

    Args:
        num_near_ties: emitted tokens whose score exceeds the next one by less than the numerical noise of this dtype.
        drafter: the drafter's state when it proposed.
        spans: the work of target and drafter in this round, as far as it is known.
        tree: None if nothing was drafted, or the tree exists only on a GPU.
        drafted_by: with several drafters, the one that proposed, or "none"; "prediction" if the user's prediction was
            followed; otherwise empty if the engine has only one drafter.
        skips: the sublayers that drafts skip and the search for them, after this round; None: no drafter of this
            process skips any.
    """

    num_near_ties: int
    drafter: DrafterState = DrafterState.READY
    spans: tuple[Span, ...] = ()
    tree: DraftedTree | None = None
    drafted_by: str = ""
    skips: SkipReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The log-probability (natural logarithm) of a token in the target's own distribution, before logit_bias,
    penalties, temperature and filters.

    Args:
        num_likelier: the number of tokens that are likelier at its position; of equally likely ones the lower id counts
            as likelier.
        top: the requested number of likeliest tokens at its position with their log-probabilities, likeliest first.
    """

    token_id: int
    logprob: float
    num_likelier: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep:
    """One round's outcome: the first `stats.num_accepted` ids were drafted, the one after them is the bonus token.

    A stop may cut the ids short; the statistics of the round do not reflect that.

    Args:
        text: the text that these ids add; text that may be the start of a stop string is held back.
        finish: why the text ends with this step; None: it continues.
        stop: the stop text that ends it, which is not part of `text`; "" if something else does.
        logprobs: one for each id; empty if `SamplingParams.logprobs` is None.
    """

    token_ids: tuple[int, ...]
    text: str
    finish: FinishReason | None
    stats: StepStats
    logprobs: tuple[TokenLogprob, ...] = ()
    stop: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """The speed-up of a request over plain decoding: the time that plain decoding would have taken for its tokens,
    divided by the time that they took.

    low, high: 95 % confidence interval, from the variation of the plain rounds.
    plain_token_s: seconds of a plain round, on all cores that plain decoding uses.
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
        num_reused_tokens: prompt tokens that were in the cache already.
        num_new_tokens: of the answer, including the token that ends it.
        num_drafted, num_accepted, num_near_ties: of all rounds, see `StepStats`; without accepted tokens that the
            end of the text cut off.
        tokens_per_s: new tokens divided by decode_s: the prefill is left out.
        tokens_per_round: new tokens divided by rounds; 1 is plain decoding.
        hit_rate: share of rounds whose bonus token the drafter had in its tree, see `StepStats.was_hit`.
        prefill_s: seconds for the prompt.
        prompt_tokens_per_s: prompt tokens that were not reused, divided by prefill_s; 0 if all were reused.
        first_token_s: from the request to its first token.
        decode_s: seconds of all rounds.
        draft_s, verify_s, wait_s: parts of decode_s, see `StepStats`.
        num_rounds_late, num_rounds_down: rounds in which the drafter was late or down; see `DrafterState`.
        num_outside: new tokens that the draft could not propose, because its vocabulary lacks them.
        num_predicted_accepted, num_predicted_rejected: drafted tokens of the user's prediction that were accepted or
            rejected.
        rounds_by: rounds of each of several drafters, of "none" and of "prediction", in descending order; otherwise
            empty if the engine has only one drafter.
        speedup: over plain decoding, with a confidence interval; None if the engine does not measure it, nothing was
            drafted, or too few rounds were measured.
        skips: the sublayers that drafts skip and the search for them, at the end, see `StepStats`.
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
    skips: SkipReport | None = None

    @property
    def is_undrafted(self) -> bool:
        """Whether hardly anything was drafted, in an answer long enough to tell."""
        num_drafting = self.num_rounds - self.rounds_by.get(PLAIN, 0)
        return self.num_rounds >= ENOUGH_ROUNDS and (not self.num_drafted or num_drafting <= FEW * self.num_rounds)

    @property
    def gained(self) -> bool | None:
        """Whether guesses made this answer faster; None if this was not measured, or is within the noise."""
        if self.speedup is not None and self.speedup.low > 1.0:
            return True
        if self.is_undrafted or (self.speedup is not None and self.speedup.high < LEAST_GAIN):
            return False
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished text.

    Args:
        token_ids: including the one that ends the text, which is not part of `text`.
        seed: reproduces the text under any drafter.
        prompt_logprobs: one for each token of the prompt from the second on; empty if `SamplingParams.prompt_logprobs`
            is None.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    stats: GenerationStats
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
