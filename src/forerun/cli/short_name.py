"""Models by short name on the command line: fetched where one sees it."""

from forerun.checkpoints.short_names.catalogue import find_named
from forerun.checkpoints.short_names.local import find_local


def fetch_visibly(name: str) -> None:
    """Fetch a model with a short name unless it is here, with a bar on a terminal, else with a line now and then.

    Raises:
        CheckpointError: it cannot be fetched.
    """
    model = find_named(name)
    if model is None or find_local(model) is not None:
        return
    from forerun.checkpoints.short_names.fetch import bring  # imports subprocess and more, for this alone

    bring(model)
