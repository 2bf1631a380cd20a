"""The protocol of decoders: the host's loop, or a device that runs a round's steps itself."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from forerun.core.config import SamplingParams
from forerun.core.steps import PrefillStep, StepStats, TokenLogprob
from forerun.sampling.noise import KeyedNoise
from forerun.text.constraint import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One text to be continued.

    Args:
        prompt_ids: at least one; the last is the first root.
        noise: the target's sampling noise; None for greedy decoding.
        near_tie: choices with a smaller margin count as near-ties, which rounding could decide.
        prediction: a text that the answer probably resembles; it is drafted where the answer follows it.
        owner: owner of the text; keys and values are never shared between owners.
        num_written: tokens at the prompt's end that another decoder wrote before it had to stop.
        constraint: the grammar of `params` at the answer's start.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    noise: KeyedNoise | None
    near_tie: float = 0.0
    prediction: Sequence[int] = ()
    owner: str = ""
    num_written: int = 0
    constraint: Constraint | None = None

    @property
    def own_prompt_ids(self) -> Sequence[int]:
        """The prompt without the tokens that another decoder wrote."""
        return self.prompt_ids[: len(self.prompt_ids) - self.num_written]

    @property
    def written_ids(self) -> Sequence[int]:
        """The tokens that another decoder wrote."""
        return self.prompt_ids[len(self.prompt_ids) - self.num_written :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The tokens of one verified proposal, their log-probabilities if requested, and the round's statistics."""

    token_ids: tuple[int, ...]
    stats: StepStats
    logprobs: tuple[TokenLogprob, ...] = ()


Rounds: TypeAlias = Generator[PrefillStep | Round, None, None]


class NothingToChooseError(Exception):
    """A decoder got scores from which no token can be chosen; the next decoder continues, or reports the cause.

    Args:
        token_ids: the text so far; the target's cache holds all but the last token.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        super().__init__(f"nothing to choose after {len(token_ids)} tokens")
        self.token_ids = token_ids


class Decoder(Protocol):
    """Plays the rounds of one request at a time.

    All decoders write the same text, because a token depends only on the text before it, the parameters and the seed,
    see `sampling.sample`.
    """

    def can_play(self, request: Request) -> bool:
        """True for requests that this decoder can play."""
        ...

    def start(self, request: Request) -> None:
        """Start a request; the previous request's state is dropped."""
        ...

    def rounds(self, num_tokens: int) -> Rounds:
        """Read the prompt, then yield rounds until `num_tokens` tokens were emitted or the caller stops.

        The last round may emit more.

        Raises:
            NothingToChooseError: another decoder must continue.
            NumericalError: no decoder can choose a token.
        """
        ...

    def end(self) -> None:
        """End the request; no work is needed until the next one begins."""
        ...


def play(decoders: Sequence[Decoder], request: Request, num_tokens: int) -> Rounds:
    """The rounds of a request, by the first decoder that can play it; if that one fails, the next continues."""
    num_prompt = len(request.prompt_ids)
    is_read = False
    for decoder in decoders:
        if not decoder.can_play(request):
            continue
        try:
            decoder.start(request)
            with closing(decoder.rounds(num_tokens - request.num_written)) as rounds:
                for played in rounds:
                    if isinstance(played, Round) or not is_read:
                        yield played
            return
        except NothingToChooseError as end:
            request = replace(
                request,
                prompt_ids=end.token_ids,
                num_written=len(end.token_ids) - num_prompt,
                params=replace(request.params, prompt_logprobs=None),
            )
            is_read = True  # so that reading the prompt is reported only once
        finally:
            decoder.end()
    raise AssertionError("the host's loop plays every request")
