"""Ray on this machine: one deployment per replica, without Ray's proxy, since the front process has the only open
socket.

Ray's processes talk over their own sockets, which require the token in the environment. Importing this module takes
seconds.
"""

import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from forerun.runtime.affinity import own_cores
from forerun.server.guard.gate import Message, Scope
from forerun.server.replicas.relay import NoReplicaError, ReplicaLostError
from forerun.server.replicas.replica import Replica, ReplicaReport
from forerun.server.replicas.shares import cores_of, gpu_share

# Ray replaces 127.0.0.1 by the machine's network address. It leaves other loopback addresses as they are.
LOOPBACK: Final = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
OBJECT_STORE_BYTES: Final = 80 * 2**20  # Ray's minimum; the messages are small
MAX_ONGOING: Final = 100_000  # no limit here, since a replica's own queue refuses requests when it is full
HEALTH_EVERY_S: Final = 2.0
FEW_LINES: Final = {"log_level": "ERROR", "enable_access_log": False}


class RayReplica:
    """A replica, called through Ray Serve. All calls raise ReplicaLostError if its process has ended.

    Args:
        handle: Ray Serve's deployment handle.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def report(self) -> ReplicaReport:
        """See `Replica.report`."""
        with loses_replica():
            report = await self._handle.report.remote()
        assert isinstance(report, ReplicaReport), "it is what a replica's method gives"
        return report

    async def metrics(self) -> str:
        """See `Replica.metrics`."""
        with loses_replica():
            return str(await self._handle.metrics.remote())

    async def end(self) -> None:
        """See `Replica.end`."""
        with loses_replica():
            await self._handle.end.remote()

    async def answer(self, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """See `Replica.answer`. If the caller stops reading, the request is cancelled in the replica."""
        messages = self._handle.options(stream=True).answer.remote(scope, body)
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
    except (RayError, RayServeException) as error:
        raise ReplicaLostError("a replica ended before its answer") from error


def start_cluster(about: Mapping[str, Any], *, num_replicas: int, uses_gpus: bool, folder: str) -> Sequence[RayReplica]:
    """Start the replicas and return them without waiting for their models to load.

    Args:
        about: keyword arguments for every `Replica`.
        folder: for Ray's sockets and logs.
    """
    ray.init(
        address="local",
        include_dashboard=False,
        _node_ip_address=LOOPBACK,
        _temp_dir=folder,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level=logging.ERROR,
    )
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(proxy_location="Disabled", logging_config=FEW_LINES)
    num_gpus = ray.cluster_resources().get("GPU", 0.0) if uses_gpus else 0.0
    options = {"num_cpus": 0, "num_gpus": gpu_share(num_gpus, num_replicas)}
    targets = []
    for index, cores in enumerate(cores_of(own_cores(), num_replicas)):
        deployment = serve.deployment(
            Replica,
            name=f"replica-{index}",
            num_replicas=1,
            max_ongoing_requests=MAX_ONGOING,
            ray_actor_options=options,
            health_check_period_s=HEALTH_EVERY_S,
            logging_config=FEW_LINES,
        )
        targets.append(serve.RunTarget(deployment.bind(**about, cores=cores), name=deployment.name, route_prefix=None))
    return [RayReplica(handle) for handle in serve.run_many(targets, wait_for_applications_running=False)]


def stop_cluster() -> None:
    """Stop Ray and all its processes; does nothing if it is not running."""
    ray.shutdown()
