"""Which cores target and draft run on when they work at the same time."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import torch

from forerun.core.affinity import own_cores, run_on
from forerun.core.config import EngineConfig
from forerun.core.drafter_config import Parallel
from forerun.core.pace import read_device
from forerun.core.profile import Profile
from forerun.kernels.native.cores import keep_pool_on

T = TypeVar("T")
USUAL_AGREEMENT: Final = 0.8  # of a draft with its target, token by token: a split must be chosen before it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePlacement:
    """Disjoint cores; empty where nobody is kept anywhere.

    One thread more than there are cores free makes a pass several times slower: the others wait for it at every step.

    Args:
        every: the cores that both have together, and plain decoding would have.
    """

    target: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    draft_threads: int = 1
    every: tuple[int, ...] = ()

    @classmethod
    def of(cls, config: EngineConfig) -> "CorePlacement":
        """All cores for whoever works alone; for a drafter's process here its own, the target keeps the others."""
        drafter = config.drafter
        if not isinstance(drafter, Parallel):
            return cls()
        is_here = drafter.address is None and read_device(drafter.device or config.device).torch_device == "cpu"
        num_threads = drafter.num_threads or (cores_by_profile(config, drafter) if is_here else 1)
        if not is_here:
            return cls(draft_threads=num_threads)
        cores = own_cores()
        draft = drafter.cores or (tuple(cores[-num_threads:]) if len(cores) >= 2 * num_threads else ())
        target = tuple(core for core in cores if core not in draft) if draft else ()
        return cls(target=target, draft=draft, draft_threads=num_threads, every=tuple(cores) if target else ())

    def place_pool(self) -> None:
        """Keep the kernels' own threads on the target's cores from now on."""
        keep_pool_on(self.target)

    def everywhere(self, num_threads: int, work: Callable[[], T]) -> T:
        """Do the work with the calling thread and so many of the kernels' own on the draft's cores too."""
        if not self.every:
            return work()
        before = torch.get_num_threads()
        try:
            keep_pool_on(self.every)
            torch.set_num_threads(num_threads)
            return run_on(self.every, work)
        finally:
            torch.set_num_threads(before)  # first: no interrupt can come before it
            self.place_pool()

    def run(self, work: Callable[[], T]) -> T:
        """Do the work with the calling thread on the target's cores, too; afterwards it is its owner's again."""
        if not self.target:
            return work()
        self.place_pool()
        return run_on(self.target, work)


def cores_by_profile(config: EngineConfig, drafter: Parallel) -> int:
    """Cores of the draft under the fastest split in the calibrated table; 1 without a table."""
    if config.profile is None:
        return 1
    profile, num_cores = Profile.read(Path(config.profile)), len(own_cores())
    splits = [
        draft
        for draft in range(1, num_cores // 2 + 1)
        if draft in profile.draft and num_cores - draft in profile.target
    ]
    return max(splits, key=lambda draft: expected_speed(profile, num_cores - draft, draft, drafter), default=1)


def expected_speed(profile: Profile, num_target: int, num_draft: int, drafter: Parallel) -> float:
    """Tokens per second if the draft agrees as usual: while the target verifies, its tree gets one level deeper with
    every expansion."""
    shape = drafter.draft
    expansion_s = profile.draft[num_draft].step_s(shape.draft_width) + profile.worker_expansion_overhead_s
    round_s = profile.target[num_target].step_s(shape.verify_width) + profile.parallel_overhead_s
    depth = min(round_s / expansion_s, shape.verify_width - 1)
    num_tokens: float = (1 - USUAL_AGREEMENT ** (depth + 1)) / (1 - USUAL_AGREEMENT)
    return num_tokens / round_s
