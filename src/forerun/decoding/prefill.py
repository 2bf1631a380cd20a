"""Reading a prompt, in wide passes without logits."""

from collections.abc import Generator, Sequence

from forerun.core.steps import PrefillStep
from forerun.drafting.drafter import Drafter
from forerun.model.runner import Runner


def prefill(target: Runner, prompt_ids: Sequence[int], drafter: Drafter | None) -> Generator[PrefillStep, None, None]:
    """Read all prompt tokens but the last, pass by pass; a local drafter reads them beside the target."""
    num_tokens = len(prompt_ids) - 1
    passes = target.read(prompt_ids[:-1])
    num_reused = num_read = next(passes)
    while num_read < num_tokens:
        yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused)
        num_read = next(passes)
        if drafter is not None:
            drafter.prefill()
    while drafter is not None and drafter.prefill():
        pass
    yield PrefillStep(num_read=num_read, num_tokens=num_tokens, num_reused=num_reused)
