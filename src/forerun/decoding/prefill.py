"""Prefill: the target reads a prompt pass by pass, and a local drafter reads along."""

from collections.abc import Generator
from typing import Protocol

from torch import Tensor

from forerun.core.steps import PrefillStep, TokenLogprob
from forerun.decoding.decoder import Request
from forerun.model.runner import Runner
from forerun.sampling.logprobs import token_logprobs


class FeatureReader(Protocol):
    """What reads a text together with the target, see `Drafter`."""

    taps: tuple[int, ...]

    def read_features(self, place: int, features: Tensor) -> None:
        """Use the target's features of committed tokens."""
        ...

    def prefill(self) -> bool:
        """Run one pass over text that it lacks; False if it lacks none."""
        ...


def prefill(target: Runner, request: Request, drafter: FeatureReader | None) -> Generator[PrefillStep, None, None]:
    """Read all prompt tokens but the last, pass by pass; a local drafter reads them in between.

    For log-probabilities of the prompt, the target reads it from its start, in the same passes for every drafter.
    """
    prompt_ids = request.prompt_ids[:-1]
    num_tokens = len(request.prompt_ids) - 1
    num_top = request.params.prompt_logprobs
    target.recall(prompt_ids if num_top is None else (), request.owner)
    if num_top is not None:
        target.cut(0)
    passes = target.read(prompt_ids, () if drafter is None else drafter.taps, has_logits=num_top is not None)
    num_reused, _ = next(passes)
    num_read = num_reused
    logprobs: tuple[TokenLogprob, ...] = ()
    while num_read < num_tokens:
        yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused, logprobs=logprobs)
        first = num_read
        num_read, output = next(passes)
        if num_top is not None:
            next_ids = request.prompt_ids[first + 1 : num_read + 1]
            logprobs = token_logprobs(output.logits, range(len(next_ids)), next_ids, num_top)
        if drafter is not None:
            if output.features is not None:
                drafter.read_features(first, output.features)
            drafter.prefill()
    while drafter is not None and drafter.prefill():
        pass
    yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused, logprobs=logprobs)
