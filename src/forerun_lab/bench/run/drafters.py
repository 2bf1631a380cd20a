"""The drafters of this engine as contestants."""

from collections.abc import Sequence
from dataclasses import fields, replace
from time import perf_counter

import torch

from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import Parallel
from forerun.core.errors import ConfigError
from forerun.core.pace import read_device
from forerun.core.steps import RoundNumbers, StepStats
from forerun.engine.engine import Engine
from forerun.engine.threads_and_cores import CorePlacement
from forerun_lab.bench.records.answers import RoundColumns, Turn


class DrafterContestant:
    """An engine with one drafter.

    Args:
        name: its label.
        config: its engine, with the threads of target and drafter together.
    """

    def __init__(self, name: str, config: EngineConfig) -> None:
        self.name = name
        try:
            self.engine = Engine(replace(config, num_threads=target_share(config)))
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"there is no memory for {name}, since every contestant has its own target ({error}): "
                "measure fewer at a time, or lower --max-length"
            ) from error

    def write(self, prompt_ids: Sequence[int], params: SamplingParams) -> Turn:
        began = perf_counter()
        stream = self.engine.stream(prompt_ids, params)
        stats: list[StepStats] = []
        emitted_at_s: list[float] = []
        for step in stream:
            emitted_at_s.append(perf_counter() - began)
            stats.append(step.stats)
        result = stream.result()
        return Turn(
            text=result.text,
            num_new_tokens=len(result.token_ids),
            wall_s=emitted_at_s[-1],
            token_ids=result.token_ids,
            num_prompt_tokens=len(prompt_ids),
            emitted=tuple(item.num_accepted + 1 for item in stats),
            emitted_at_s=tuple(emitted_at_s),
            num_near_ties=result.stats.num_near_ties,
            rounds=columns_of(stats),
            skips=result.stats.skips,
        )

    def forget(self) -> None:
        self.engine.forget()

    def close(self) -> None:
        self.engine.close()


def target_share(config: EngineConfig) -> int:
    """Threads of each of the target's ranks here; they and a drafter's process take their threads from the same total.

    Raises:
        ConfigError: no thread is left for the target, on a device that computes with CPU threads.
    """
    drafter = config.drafter
    num_all = config.num_threads
    assert num_all is not None, "a run has a number of threads"
    num_here = config.target_ranks - config.remote_ranks
    if not isinstance(drafter, Parallel) or drafter.address is not None:
        return max(1, num_all // num_here)
    num_threads = CorePlacement.of(config).draft_threads * drafter.ranks
    placement = read_device(config.device)
    num_left = num_all - num_threads
    if num_left < 1 and placement.torch_device == "cpu" and not placement.is_paced:
        threads = "the only thread" if num_all == 1 else f"all {num_all} threads"
        raise ConfigError(
            f"the drafter would take {threads}, and the target needs one too: give --threads {num_threads + 1} or more"
        )
    return max(1, num_left // num_here)


def columns_of(rounds: Sequence[RoundNumbers]) -> RoundColumns:
    """The rounds of a generation as columns."""
    rows = [numbers.numbers() for numbers in rounds]
    return RoundColumns(**{field.name: tuple(row[field.name] for row in rows) for field in fields(RoundColumns)})
