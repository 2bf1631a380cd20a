"""The default model of commands."""

import sys

from forerun.checkpoints.short_names.catalogue import SMOLLM2, named_models
from forerun.checkpoints.short_names.local import find_local
from forerun.cli.failures import say
from forerun.core.drafter_config import BUILTIN_TARGET
from forerun.core.errors import CheckpointError


def default_model() -> str:
    """smollm2 if it is on this machine, or can be fetched on a terminal; else the built-in target, with a message."""
    model = named_models()[SMOLLM2]
    if find_local(model) is not None:
        return SMOLLM2
    obstacle = f"{SMOLLM2} is not on this machine; `forerun pull {SMOLLM2}` fetches it"
    if sys.stderr.isatty():
        from forerun.checkpoints.short_names.fetch import bring  # not free to import

        try:
            bring(model)
        except CheckpointError as error:
            obstacle = str(error)
        else:
            return SMOLLM2
    say(f"using the tiny built-in model, which knows no facts: {obstacle}")
    return BUILTIN_TARGET
