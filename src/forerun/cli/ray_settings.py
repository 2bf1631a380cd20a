"""What Ray must be told before it is imported: it reads the environment, as do the processes that it starts."""

import os
from importlib.util import find_spec
from secrets import token_hex

from forerun.core.errors import ConfigError


def require_ray() -> None:
    """Raise ConfigError where Ray Serve is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("num_replicas needs ray for more than one: run pip install 'ray[serve]>=2.59'")


def prepare_ray() -> None:
    """Have Ray tell nobody of its use, and its processes take no calls but those of this run."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=token_hex(32),
        GRPC_ENABLE_FORK_SUPPORT="0",  # replicas fork only to start other programs
    )
