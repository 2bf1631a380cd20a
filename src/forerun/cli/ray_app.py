"""Makes a replica from the arguments in a config file of Ray Serve; see deploy/rayservice.yaml."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from forerun.cli.engine_loading import open_engine
from forerun.cli.values import read_object
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import automatic_drafter, drafter_name
from forerun.server.config import ServerConfig
from forerun.server.replicas.cluster import replica_deployment
from forerun.server.replicas.replica import about_replicas


def replica(args: Mapping[str, str]) -> Any:
    """A replica, whose fronts run `forerun serve MODEL --front`.

    Args:
        args: `model`, `index` of the replica, `cores` of its own, `draft` as for --draft, and `engine` with other
            settings of `EngineConfig` as a JSON object.
    """
    settings = read_object(args.get("engine", "{}"), flag="engine", example='{"max_length": 4096}')
    engine_config = EngineConfig(
        target=args["model"], drafter=automatic_drafter(args.get("draft")), measures_speedup=True, **settings
    )
    config = ServerConfig()
    name = drafter_name(engine_config.drafter)
    about = about_replicas(config, partial(open_engine, engine_config), engine_config, drafter_name=name)
    needs = {"num_cpus": int(args.get("cores", "0"))}
    return replica_deployment(int(args["index"]), about, needs=needs, drain_s=config.drain_s)
