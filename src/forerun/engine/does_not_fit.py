"""Turn the errors of a model that does not fit a device into messages for the user."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forerun.backends.choose import kernel_fault
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError

ADVICE_OF_TORCH = " If reserved"  # The rest of the message is about the settings of torch's allocator.


@contextmanager
def naming_what_does_not_fit(config: EngineConfig) -> Iterator[None]:
    """Inside the block, raise ConfigError if the device is out of memory, or a GPU cannot run a kernel."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{config.target} and its drafter do not fit into the memory of {config.device}: "
            f"{str(error).splitlines()[0].split(ADVICE_OF_TORCH)[0]} Smaller weights (int8, int4), a smaller "
            'max_length or a smaller draft need less memory; device "cpu" uses the main memory'
        ) from error
    except Exception as error:
        fault = kernel_fault(error)
        if fault is None:
            raise
        raise ConfigError(
            f"{config.device} cannot run one of Triton's kernels for {config.target}: {fault}. "
            'Set kernels "torch", which run there, but slower. Please report it, so that such a GPU is detected earlier'
        ) from error
