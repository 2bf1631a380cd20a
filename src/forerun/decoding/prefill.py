"""Prefill: the target reads a prompt pass by pass, and a local drafter reads along."""

from collections.abc import Generator
from typing import Protocol

from torch import Tensor

from forerun.core.steps import PrefillStep
from forerun.decoding.decoder import Request
from forerun.model.runner import Runner


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
    """Read all prompt tokens but the last, pass by pass; a local drafter reads them in between."""
    prompt_ids = request.prompt_ids[:-1]
    num_tokens = len(request.prompt_ids) - 1
    target.recall(prompt_ids, request.owner)
    passes = target.read(prompt_ids, () if drafter is None else drafter.taps)
    num_reused, _ = next(passes)
    num_read = num_reused
    while num_read < num_tokens:
        yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused)
        first = num_read
        num_read, features = next(passes)
        if drafter is not None:
            if features is not None:
                drafter.read_features(first, features)
            drafter.prefill()
    while drafter is not None and drafter.prefill():
        pass
    yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused)
