"""Configuration of a fleet: how many replicas of a server there are, and where they run."""

from dataclasses import dataclass, field
from typing import Final

from forerun.core.errors import require
from forerun.core.field_types import read_fields, setting
from forerun.server.config import ServerConfig

MAX_REPLICAS: Final = 256
DEFAULT_MAX_REPLICAS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """Replicas of one server.

    Args:
        server: of the front, and of every replica; a replica listens nowhere.
        num_replicas: number of engines, each in its own process; each generates one text at a time.
        max_replicas: up to this many of them run while requests wait; None: always `num_replicas`.
        ray_address: "host:port" of the Ray cluster on which the replicas run, to which this machine belongs, or "auto";
            None: they run on this machine.
        is_front: use replicas that run on the cluster already.
    """

    server: ServerConfig = field(default_factory=ServerConfig)
    num_replicas: int = setting(
        1, "--replicas", help="Engines that run at once, each in its own process under Ray Serve."
    )
    max_replicas: int | None = setting(
        None, "--max-replicas", help=f"Limit on engines with --replicas auto [{DEFAULT_MAX_REPLICAS}]."
    )
    ray_address: str | None = setting(
        None, "--ray-address", help="HOST:PORT of a Ray cluster for the replicas, or auto: the one of this machine."
    )
    is_front: bool = setting(
        False, "--front", help="Use the replicas that another forerun serve of this model has on the cluster."
    )

    def __post_init__(self) -> None:
        read_fields(self)
        require(
            1 <= self.num_replicas <= MAX_REPLICAS, f"num_replicas {self.num_replicas} must lie in [1, {MAX_REPLICAS}]"
        )
        require(
            self.max_replicas is None or self.num_replicas <= self.max_replicas <= MAX_REPLICAS,
            f"max_replicas {self.max_replicas} must lie in [{self.num_replicas}, {MAX_REPLICAS}]",
        )
        require(self.ray_address != "", "ray_address is empty: give HOST:PORT or auto, or leave it out")
        require(
            not self.is_front or self.ray_address is not None,
            "is_front needs ray_address: a front uses the replicas of a cluster",
        )
        require(
            not self.is_front or (self.num_replicas == 1 and self.max_replicas is None),
            "is_front uses replicas that run already: leave their number out",
        )

    @property
    def is_single(self) -> bool:
        """Whether one engine in this process is enough, without Ray."""
        return self.num_replicas == 1 and self.max_replicas is None and self.ray_address is None
