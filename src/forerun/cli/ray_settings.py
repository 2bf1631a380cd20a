"""Environment variables to set before Ray is imported; Ray and the processes that it starts read them."""

import os
from importlib.util import find_spec
from secrets import token_hex

from forerun.cli.logs import note
from forerun.core.errors import ConfigError
from forerun.core.optional_packages import install_command


def require_ray() -> None:
    """Raise ConfigError if Ray Serve is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(f"replicas need ray, which is not installed: {install_command('ray')}")


def prepare_ray(*, is_alone: bool) -> None:
    """Turn off Ray's usage reports, and warn of a cluster that is open to others.

    Args:
        is_alone: Ray is started for this run, and its processes accept calls from this run only. A cluster has its own
            token, which the user gives.
    """
    # Replicas fork only to start other programs. Ray's colours would also go to files.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", GRPC_ENABLE_FORK_SUPPORT="0", RAY_COLOR_PREFIX="0")
    if is_alone:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token_hex(32))
    elif os.environ.get("RAY_AUTH_MODE") != "token":
        note("anyone who can reach this Ray cluster can run programs on it: set RAY_AUTH_MODE=token on its machines")
