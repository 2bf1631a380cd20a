"""Reads a prompt in wide passes without logits."""

from collections.abc import Generator

from forerun.core.steps import PrefillStep
from forerun.decoding.decoder import Request
from forerun.drafting.drafter import Drafter
from forerun.model.runner import Runner


def prefill(target: Runner, request: Request, drafter: Drafter | None) -> Generator[PrefillStep, None, None]:
    """Read all prompt tokens but the last, pass by pass; a local drafter reads them in between."""
    prompt_ids, num_tokens = request.prompt_ids[:-1], len(request.prompt_ids) - 1
    target.recall(prompt_ids, request.owner)
    passes = target.read(prompt_ids)
    num_reused = num_read = next(passes)
    while num_read < num_tokens:
        yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused)
        num_read = next(passes)
        if drafter is not None:
            drafter.prefill()
    while drafter is not None and drafter.prefill():
        pass
    yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused)
