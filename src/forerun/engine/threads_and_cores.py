"""An engine's number of threads, and the cores of target and draft when they run at the same time."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import torch

from forerun.core.affinity import own_cores, run_on, usable_cores
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import Parallel
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device
from forerun.core.threads import on_threads

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlacement:
    """An engine's threads. With a drafter's process, target and draft get disjoint cores; otherwise no thread is
    pinned. All ranks of a model have the same cores.

    One thread more than free cores makes a pass several times slower, because the others wait for it at every step.

    Args:
        num_threads: threads of the target's passes and torch calls, and of each other rank that shares it.
        plain_threads: threads that plain decoding uses, on the cores `every`.
        every: the cores of target and draft together, which plain decoding uses.
        place: pins the threads of the target's backend, see `ModelBackend.place_threads`.
    """

    num_threads: int = 1
    plain_threads: int = 1
    target: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    draft_threads: int = 1
    every: tuple[int, ...] = ()
    place: Callable[[Sequence[int]], None] = field(default=lambda cores: None, compare=False)

    @classmethod
    def of(cls, config: EngineConfig) -> "CorePlacement":
        """All cores without a local drafter process; with one, it gets separate cores and the target the others."""
        drafter = config.drafter
        usable = usable_cores()
        num_here = config.target_ranks - config.remote_ranks
        most = max(1, usable // num_here)
        alone = allowed_threads(config.num_threads, most)
        if not isinstance(drafter, Parallel):
            return cls(num_threads=alone, plain_threads=alone)
        if drafter.address is not None or read_device(drafter.device or config.device).torch_device != "cpu":
            return cls(num_threads=alone, plain_threads=alone, draft_threads=drafter.num_threads or 1)
        num_draft = allowed_threads(drafter.num_threads or 1, max(1, usable // drafter.ranks))
        cores = own_cores()
        needed = num_draft * drafter.ranks
        require_own(drafter.cores, cores)
        draft = drafter.cores or (tuple(cores[-needed:]) if usable >= needed + max(needed, num_here) else ())
        target = tuple(core for core in cores if core not in draft) if draft else ()
        left = max(1, min(len(target), usable - needed) // num_here) if target else most
        warn_of_few_cores(config, alone, left, most)
        return cls(
            num_threads=min(alone, left),
            plain_threads=alone,
            target=target,
            draft=draft,
            draft_threads=num_draft,
            every=tuple(cores) if target else (),
        )

    def of_plain_decoding(self) -> "CorePlacement":
        """All cores for the target, as in plain decoding."""
        return replace(self, num_threads=self.plain_threads, target=self.every)

    def place_pool(self) -> None:
        """Pin the kernels' threads to the target's cores from now on."""
        self.place(self.target)

    def everywhere(self, work: Callable[[], T]) -> T:
        """Do the work on every core, with plain decoding's number of threads."""
        try:
            self.place(self.every)
            return on_threads(self.plain_threads, partial(run_on, self.every, work))
        finally:
            self.place_pool()

    def run(self, work: Callable[[], T]) -> T:
        """Do the work on the target's cores with its threads, then restore the calling thread's affinity."""
        if self.target:
            self.place_pool()
        return on_threads(self.num_threads, partial(run_on, self.target, work))


def allowed_threads(wanted: int | None, most: int) -> int:
    """The configured number of threads, else torch's default, at most one per core."""
    if wanted is not None and wanted > most:
        logger.warning("%d threads were requested, but only %d run, one on each available core", wanted, most)
    return min(torch.get_num_threads() if wanted is None else wanted, most)


def require_own(wanted: Sequence[int], own: Sequence[int]) -> None:
    """Raise ConfigError for cores that a drafter's process cannot use, because it would end at every start."""
    foreign = [core for core in wanted if core not in own]
    if foreign:
        raise ConfigError(f"cores {wanted}: this process may not use core {foreign[0]}: choose from {own}")


def warn_of_few_cores(config: EngineConfig, alone: int, left: int, most: int) -> None:
    """Log that a local drafter process takes cores from the target.

    Args:
        alone: threads of plain decoding.
        left: cores left to the target.
        most: total cores.
    """
    device = read_device(config.device)
    if device.torch_device != "cpu" or device.is_paced or (most > 1 and min(alone, left) >= min(alone, 2)):
        return
    how = f"takes {most - left} of {most} cores from the target" if most > 1 else "shares the only core with the target"
    logger.warning(
        "the drafter's process %s, which can cost more than it gains: compare with none and draft_model", how
    )
