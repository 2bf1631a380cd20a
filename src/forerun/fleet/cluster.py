"""Ray, on this machine or a cluster: one deployment per replica, without Ray's proxy, since fronts have the only open
sockets.

Ray's processes use their own sockets. On this machine these require the token in the environment. Importing this module
takes seconds.
"""

import logging
import re
import socket
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException
from starlette.types import Message, Scope

from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.fleet.config import FleetConfig
from forerun.fleet.relay import NoReplicaError, ReplicaLostError
from forerun.fleet.replica import ForwardedState, Replica, ReplicaReport
from forerun.fleet.shares import cores_each, gpu_share
from forerun.server.work.service import short_name_of

# Ray replaces 127.0.0.1 by the machine's network address. It leaves other loopback addresses as they are.
LOOPBACK: Final = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
OBJECT_STORE_BYTES: Final = 80 * 2**20  # Ray's minimum; the messages are small
MAX_ONGOING: Final = 100_000  # no limit here, since a replica's own queue refuses requests when it is full
HEALTH_EVERY_S: Final = 2.0
CONNECT_S: Final = 10.0
FEW_LINES: Final = {"log_level": "ERROR", "enable_access_log": False}
OF_REPLICAS: Final = {"GRPC_ENABLE_FORK_SUPPORT": "0"}  # replicas fork only to start other programs
LEAVING: Final = "PENDING_MIGRATION"  # Ray Serve's state of a replica whose machine is being drained
STAYING: Final = ("NOT_STARTED", "DEPLOYING", "RUNNING", "UNHEALTHY")  # its states of applications that are not ending


class RayReplica:
    """A replica, called through Ray Serve. All calls raise ReplicaLostError if its process has ended.

    Args:
        handle: Ray Serve's deployment handle.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def report(self, front: str, version: str) -> ReplicaReport:
        """See `Replica.report`."""
        with loses_replica():
            report = await self._handle.report.remote(front, version)
        assert isinstance(report, ReplicaReport), "a replica's method returns a report"
        return report

    async def metrics(self) -> str:
        """See `Replica.metrics`."""
        with loses_replica():
            return str(await self._handle.metrics.remote())

    async def leave(self, front: str) -> int:
        """See `Replica.leave`."""
        with loses_replica():
            return int(await self._handle.leave.remote(front))

    async def end(self) -> None:
        """See `Replica.end`."""
        with loses_replica():
            await self._handle.end.remote()

    async def answer(self, scope: Scope, state: ForwardedState, body: bytes) -> AsyncIterator[Message]:
        """See `Replica.answer`. If the caller stops reading, the request is cancelled in the replica."""
        messages = self._handle.options(stream=True).answer.remote(scope, state, body)
        try:
            with loses_replica():
                async for message in messages:
                    yield message
        finally:
            messages.cancel()


@contextmanager
def loses_replica() -> Iterator[None]:
    """Turn Ray's errors into ours."""
    try:
        yield
    except DeploymentUnavailableError as error:
        raise NoReplicaError(
            "no replica can be started: see the log lines of Ray Serve above for the reason"
        ) from error
    except (RayError, RayServeException, OSError) as error:
        raise ReplicaLostError("a replica ended before its answer") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundReplica:
    """A replica that Ray Serve knows.

    Args:
        is_leaving: its machine is being drained, and another replica takes its place.
        is_ending: it finishes the requests that it has begun, and no replica takes its place.
    """

    replica: RayReplica
    is_leaving: bool
    is_ending: bool


class Cluster:
    """The replicas of one model on Ray.

    Args:
        about: keyword arguments for every `Replica`.
    """

    def __init__(self, config: FleetConfig, engine: EngineConfig, about: Mapping[str, Any]) -> None:
        self._config = config
        self._engine = engine
        self._about = about
        # Fronts find the replicas by this name.
        self._name = re.sub(r"[^\w.-]", "-", config.server.model_name or short_name_of(engine.target))
        self._num_remote = 0 if config.ray_address is None else engine.remote_ranks  # ranks on other machines
        self._found: dict[int, RayReplica] = {}

    def start(self, indices: Iterable[int]) -> None:
        """Start these replicas without waiting for their models to load. One that runs already is left alone."""
        serve.start(proxy_location="Disabled", logging_config=FEW_LINES)
        needs = self._needs()
        known = {name for name, application in serve.status().applications.items() if application.status in STAYING}
        targets = []
        for index in indices:
            if (name := f"{self._name}.{index}") in known:
                continue  # with the settings that it was started with
            bound = replica_deployment(
                index, self._about, needs=needs, drain_s=self._config.server.drain_s, num_remote=self._num_remote
            )
            targets.append(serve.RunTarget(bound, name=name, route_prefix=None))
        if targets:
            serve.run_many(targets, wait_for_applications_running=False)

    def add(self, index: int) -> None:
        """Start one more.

        Raises:
            ReplicaLostError: Ray Serve does not answer.
        """
        with loses_replica():
            self.start([index])

    def _needs(self) -> dict[str, float]:
        """The resources that Ray counts for a replica; the replicas that may run at most share the cores and GPUs."""
        config = self._config
        engine = self._engine
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        uses_gpus = engine.device.startswith(("auto", "cuda"))
        num_gpus = sum(int(machine.get("GPU", 0)) for machine in machines) if uses_gpus else 0
        max_replicas = config.max_replicas or config.num_replicas
        num_ranks = engine.target_ranks - engine.remote_ranks
        has_ranks = num_ranks + self._num_remote > 1  # each of which needs a GPU
        gpus = num_ranks if num_gpus and has_ranks else gpu_share(num_gpus, max_replicas)
        cores = cores_each([machine.get("CPU", 0) for machine in machines], max_replicas * (1 + self._num_remote))
        num_threads = None if config.ray_address is None else engine.num_threads
        return {"num_cpus": cores and (num_threads or cores), "num_gpus": gpus}

    def find(self) -> dict[int, FoundReplica]:
        """The replicas that Ray Serve runs or starts, whether this front or another one has started them.

        Raises:
            ReplicaLostError: Ray Serve does not answer.
        """
        found = {}
        with loses_replica():
            for name, application in serve.status().applications.items():
                model, _, index = name.rpartition(".")
                if model != self._name or not index.isdigit():
                    continue
                states = [state for item in application.deployments.values() for state in item.replica_states]
                with suppress(RayServeException):  # it is not deployed yet
                    if int(index) not in self._found:
                        self._found[int(index)] = RayReplica(serve.get_app_handle(name))
                    found[int(index)] = FoundReplica(
                        replica=self._found[int(index)],
                        is_leaving=LEAVING in states,
                        is_ending=application.status == "DELETING",
                    )
        self._found = {index: item.replica for index, item in found.items()}
        return found

    def stop(self, indices: Iterable[int]) -> None:
        """Stop these replicas when they have finished the requests that they have begun."""
        for index in indices:
            with suppress(RayError, RayServeException):
                serve.delete(f"{self._name}.{index}", _blocking=False)


def replica_deployment(
    index: int, about: Mapping[str, Any], *, needs: Mapping[str, float], drain_s: float, num_remote: int = 0
) -> serve.Application:
    """A replica for Ray Serve.

    Args:
        needs: the resources that Ray counts for it; "num_cpus" are its own cores.
        num_remote: ranks of its target on other machines, each with as many cores and one GPU if it has any.
    """
    share = int(needs["num_cpus"])
    gpus_each = min(1.0, needs.get("num_gpus", 0))
    bundles = [
        {"CPU": share or 0.01, "GPU": needs.get("num_gpus", 0)},
        *[{"CPU": share or 0.01, "GPU": gpus_each}] * num_remote,
    ]
    used = [{name: number for name, number in bundle.items() if number} for bundle in bundles]
    group = {"placement_group_bundles": used, "placement_group_strategy": "SPREAD"} if num_remote else {}
    deployment = serve.deployment(
        Replica,
        name=f"replica-{index}",
        num_replicas=1,
        max_ongoing_requests=MAX_ONGOING,
        ray_actor_options={**needs, "runtime_env": {"env_vars": OF_REPLICAS}},
        health_check_period_s=HEALTH_EVERY_S,
        graceful_shutdown_timeout_s=drain_s,
        logging_config=FEW_LINES,
        **group,
    )
    name = deployment.name
    return deployment.bind(**about, name=name, share=share, num_remote=num_remote, gpus_each=gpus_each)


def open_ray(address: str | None, *, folder: str) -> None:
    """Start Ray on this machine, or join a cluster.

    Args:
        address: of a running cluster, which this machine belongs to; None: only this machine.
        folder: for the sockets and logs of Ray on this machine.

    Raises:
        ConfigError: the cluster cannot be joined.
    """
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    if address is None:
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=folder,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level=logging.ERROR,
        )
        return
    try:
        host, _, port = address.rpartition(":")
        if host:  # Ray itself would wait for minutes if nothing listens there
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address=address, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise ConfigError(
            f"ray_address {address} cannot be joined from this machine ({error}): start Ray here first, "
            "ray start --address=HOST:PORT, with the same versions of Python and Ray"
        ) from error


def head_address() -> str:
    """Address of the head node's process that knows all others."""
    return str(ray.get_runtime_context().gcs_address)


def close_ray() -> None:
    """Leave the cluster; if Ray runs only on this machine, end it and all its processes. Does nothing without Ray."""
    ray.shutdown()
