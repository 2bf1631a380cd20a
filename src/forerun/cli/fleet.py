"""A fleet of replicas from the command line, or from a config file of Ray Serve (deploy/rayservice.yaml).

Environment variables that Ray and the processes that it starts read are set here before Ray is imported.
"""

import os
import socket
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from secrets import token_hex
from typing import Annotated, Any, Final

from forerun.cli.engine_loading import open_engine
from forerun.cli.failures import exit_code, say
from forerun.cli.flag_values import read_object
from forerun.cli.flags import given_settings, option, with_flags_of
from forerun.cli.logs import note
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import automatic_drafter, drafter_name
from forerun.core.errors import ConfigError, require
from forerun.core.optional_packages import install_command
from forerun.fleet.config import DEFAULT_MAX_REPLICAS, FleetConfig
from forerun.server.config import ServerConfig

AUTO: Final = "auto"


@with_flags_of(FleetConfig, panel="Replicas")
class FleetOptions:
    """How many engines there are, and where they run."""

    replicas: Annotated[
        str | None,
        option(
            "--replicas", help="Engines at once, each a process under Ray Serve; auto: as many as requests need [1]."
        ),
    ] = None
    min_replicas: Annotated[
        int | None, option("--min-replicas", help="Engines that --replicas auto always runs [1].")
    ] = None

    def config(self, server: ServerConfig) -> FleetConfig:
        """The fleet that these flags ask for."""
        return FleetConfig(server=server, **self._settings())

    def _settings(self) -> dict[str, Any]:
        """The settings that were given, with the number of replicas read."""
        given = given_settings(FleetConfig, self)
        if self.replicas == AUTO:
            least = self.min_replicas or 1
            return {"max_replicas": max(least, DEFAULT_MAX_REPLICAS)} | given | {"num_replicas": least}
        require(
            self.min_replicas is None and "max_replicas" not in given,
            "--min-replicas and --max-replicas are the bounds of --replicas auto: give it, or leave them out",
        )
        try:
            return given if self.replicas is None else given | {"num_replicas": int(self.replicas)}
        except ValueError:
            raise ConfigError(f"--replicas {self.replicas!r} must be a whole number, or auto") from None


def require_ray() -> None:
    """Raise ConfigError if Ray Serve is not installed."""
    if find_spec("ray") is None:
        raise ConfigError(f"replicas need ray, which is not installed: {install_command('ray')}")


def serve_fleet(
    config: FleetConfig, listener: socket.socket, engine_config: EngineConfig, *, on_ready: Callable[[str], None]
) -> None:
    """Serve with replicas until a signal arrives or no replica can be opened; see `forerun.fleet.front`."""
    prepare_ray(is_alone=config.ray_address is None)
    from forerun.fleet.front import serve_replicas
    from forerun.fleet.head_node import RayGoneError

    open_first = partial(open_engine, engine_config)
    named = drafter_name(engine_config.drafter)
    try:
        serve_replicas(config, listener, open_first, engine_config, drafter_name=named, on_ready=on_ready)
    except RayGoneError as error:
        say(f"forerun: error: {error}")
        os._exit(exit_code(error))  # Ray would hold the process until it gives up its head node too


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


def replica(args: Mapping[str, str]) -> Any:
    """A replica for Ray Serve, whose fronts run `forerun serve MODEL --front`.

    Args:
        args: `model`, `index` of the replica, `cores` of its own, `draft` as for --draft, and `engine` with other
            settings of `EngineConfig` as a JSON object.
    """
    from forerun.fleet.cluster import replica_deployment  # imports Ray
    from forerun.fleet.replica import about_replicas

    settings = read_object(args.get("engine", "{}"), flag="engine", example='{"max_length": 4096}')
    engine_config = EngineConfig(
        target=args["model"], drafter=automatic_drafter(args.get("draft")), measures_speedup=True, **settings
    )
    config = ServerConfig()
    name = drafter_name(engine_config.drafter)
    about = about_replicas(config, partial(open_engine, engine_config), engine_config, drafter_name=name)
    needs = {"num_cpus": int(args.get("cores", "0"))}
    return replica_deployment(int(args["index"]), about, needs=needs, drain_s=config.drain_s)
