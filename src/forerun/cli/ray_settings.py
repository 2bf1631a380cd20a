"""Environment variables to set before Ray is imported; Ray and the processes that it starts read them."""

import os
from importlib.util import find_spec
from secrets import token_hex

from forerun.core.errors import ConfigError


def require_ray() -> None:
    """Raise ConfigError where Ray Serve is not installed."""
    if find_spec("ray") is None:
        raise ConfigError("num_replicas above 1 needs ray: run pip install 'ray[serve]>=2.59'")


def prepare_ray() -> None:
    """Turn off Ray's usage reports, and let its processes accept calls from this run only."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=token_hex(32),
        GRPC_ENABLE_FORK_SUPPORT="0",  # replicas fork only to start other programs
    )
