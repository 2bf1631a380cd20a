"""Names a model of the catalogue that gains from guesses, for a person whose model gains nothing."""

from math import ceil
from typing import Final

from forerun.checkpoints.short_names.catalogue import NamedModel, listed_models
from forerun.checkpoints.short_names.local import find_local
from forerun.core.disk_room import gigabytes

FETCHED_PER_S: Final = 10e6  # bytes: an example, as the speed of a connection is not known before a download


def model_that_gains(num_parameters: int) -> str:
    """A sentence that names the smallest model with a measured gain; empty if none is larger than `num_parameters`."""
    larger = [model for model in listed_models() if model.gain is not None and model.num_parameters > num_parameters]
    if not larger:
        return ""
    model = min(larger, key=lambda model: model.num_parameters)
    measured = f"With {model.name} guesses made {model.gain} on all machines where this was measured"
    return f"{measured} ({_download(model)})."


def _download(model: NamedModel) -> str:
    if find_local(model) is not None:
        return "it is on this machine"
    minutes = ceil(model.num_bytes / FETCHED_PER_S / 60.0)
    time = f"{minutes} minute{'s' if minutes > 1 else ''} at {FETCHED_PER_S / 1e6:.0f} MB/s"
    return f"`forerun pull {model.name}` fetches {gigabytes(model.num_bytes)}: about {time}"
