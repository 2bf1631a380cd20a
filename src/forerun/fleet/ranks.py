"""Ranks of a replica's target on other machines, where no process can inherit a socket of the leader's.

So Ray starts the command `forerun worker` there, within the placement group of the replica, and the rank connects.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import ray
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from forerun.fleet.shares import claimed_cores


@dataclass(frozen=True, slots=True)
class RankMeeting:
    """The address to which ranks of other machines connect.

    Args:
        folder: of the key file, kept as long as it is needed.
        actors: the Ray actors that run these ranks.
    """

    address: str
    key_file: str
    folder: "TemporaryDirectory[str]"
    actors: Sequence[Any]


class RemoteRank:
    """Runs a rank in a separate process, which ends with its leader.

    Args:
        share: number of its own cores; 0: any cores.
    """

    def __init__(self, model: str, address: str, key: str, *, share: int) -> None:
        self._folder = TemporaryDirectory(prefix="forerun-")
        cores = claimed_cores(share)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "forerun",
                "worker",
                model,
                "--role",
                "target",
                "--join",
                address,
                "--key-file",
                write_key(self._folder.name, key),
                "--device",
                "cuda" if ray.get_gpu_ids() else "cpu",
                *(("--cores", ",".join(map(str, cores))) if cores else ()),
            ]
        )


def start_remote_ranks(model: str, num_ranks: int, *, share: int, num_gpus: float) -> RankMeeting:
    """Start the ranks in the other bundles of this replica's placement group, without waiting for them.

    Args:
        num_gpus: of each rank.
    """
    here = ray.util.get_node_ip_address()
    key = token_hex(32)
    folder = TemporaryDirectory(prefix="forerun-")
    address = f"{here}:{free_port(here)}"
    group = get_current_placement_group()
    assert group is not None, "the deployment was started with a placement group"
    make = ray.remote(RemoteRank)
    actors = [
        make.options(
            num_cpus=share,
            num_gpus=num_gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1 + number),
        ).remote(model, address, key, share=share)
        for number in range(num_ranks)
    ]
    return RankMeeting(address, write_key(folder.name, key), folder, actors)


def free_port(address: str) -> int:
    """A port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def write_key(folder: str, key: str) -> str:
    """A key file that only its owner may read."""
    path = Path(folder) / "key"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    path.write_text(key)
    return str(path)
