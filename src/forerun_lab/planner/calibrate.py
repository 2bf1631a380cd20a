"""Measure the times of passes on this machine, as a profile for the planner."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from forerun.checkpoints.open import open_source
from forerun.core.affinity import usable_cores
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DraftModel, NoDrafter, Parallel
from forerun.core.errors import ConfigError
from forerun.core.pace import Pace, read_device
from forerun.core.threads import on_threads
from forerun.drafting.draft_model import serial_rows
from forerun.drafting.draft_rows import OwnRows
from forerun.drafting.draft_tree import DraftTree
from forerun.drafting.guessed_tree import GuessedTree
from forerun.drafting.policies import Policies, RemotePolicy, TreePolicy
from forerun.engine.engine import Engine
from forerun.engine.model_loading import Checkpoint
from forerun.engine.shared_model import load_shared
from forerun.engine.threads_and_cores import allowed_threads
from forerun.model.pass_times import measure_pace
from forerun.model.runner import Runner
from forerun.sharding.followers import SharedRole
from forerun.speculation.referee.budget import DraftCosts, RowBudget
from forerun.speculation.referee.costs import RoundCosts
from forerun_lab.planner.profile import Profile

TARGET_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32)
DRAFT_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
CONTEXT: Final = 256
ROOM: Final = 256  # cache rows after the context
BUDGET_S: Final = 2.0  # per model and number of cores
NUM_EXPANSIONS: Final = 60
MOST_ANSWERS: Final = 8  # limit on retries until the process has drafted
EXPANSIONS_PER_ROUND: Final = 4
NUM_TOKENS: Final = 60  # length of the answer that is measured

OnStep = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The numbers of ranks to measure each model on; each rank has a GPU of its own, or `num_threads` of the CPU.

    Args:
        target, draft: the numbers; empty: one on a CPU, elsewhere as many as there are devices.
        remote: how many of the target's ranks run on other hosts, at most all but one; their workers must join again
            for every measurement.
        address, key_file: where these join, and their key.
        draft_device: the first device of the draft; None: the target's.
    """

    target: Sequence[int] = ()
    draft: Sequence[int] = ()
    remote: int = 0
    address: str | None = None
    key_file: str | None = None
    draft_device: str | None = None

    def __post_init__(self) -> None:
        for flag, numbers in (("--target-ranks", self.target), ("--draft-ranks", self.draft)):
            if min(numbers, default=1) < 1:
                raise ConfigError(f"{flag} {','.join(map(str, numbers))} must be numbers of at least 1, such as 1,2,4")

    def on(self, device: str) -> "Ranks":
        """The same with the numbers that were left out."""
        return replace(
            self,
            target=self.target or every_number(device),
            draft=self.draft or every_number(self.draft_device or device),
        )

    def of_target(self, config: EngineConfig, num_ranks: int) -> EngineConfig:
        """The settings of a target on this many ranks."""
        remote = min(self.remote, num_ranks - 1)
        joined: dict[str, Any] = {"rank_address": self.address, "rank_key_file": self.key_file} if remote else {}
        return replace(config, target_ranks=num_ranks, remote_ranks=remote, **joined)

    def of_draft(self, config: EngineConfig, draft: str, num_ranks: int) -> EngineConfig:
        """The settings with which a draft is loaded on this many ranks, as if it were the target."""
        return replace(config, target=draft, target_ranks=num_ranks, device=self.draft_device or config.device)


def calibrate(config: EngineConfig, draft: str, on_step: OnStep, ranks: Ranks | None = None) -> Profile:
    """Measure both models on every number of cores or ranks, and the overheads of rounds and expansions.

    Args:
        config: target, dtype, device and the most threads; its drafter and its pace are not used.
        on_step: called with the name of each measurement.
        ranks: None: on a CPU, one rank with every number of threads; elsewhere every number of devices.
    """
    most = allowed_threads(config.num_threads, usable_cores())
    device = read_device(config.device).torch_device
    config = replace(config, device=device, num_threads=most)
    about = {
        "target": config.target,
        "draft": draft,
        "dtype": config.dtype,
        "weights": config.weights,
        "device": config.device,
        "exactness": config.exactness,
        "torch": torch.__version__,
    }
    if ranks is None and device == "cpu":
        return of_cores(config, draft, range(1, most + 1), on_step, about)
    return of_ranks(config, draft, (ranks or Ranks()).on(device), on_step, about)


def every_number(first: str) -> Sequence[int]:
    """The numbers of ranks that have a device each, from this one on; on a CPU one."""
    device = torch.device(first)
    return (1,) if device.type == "cpu" else range(1, torch.cuda.device_count() - (device.index or 0) + 1)


def of_cores(
    config: EngineConfig, draft: str, units: Sequence[int], on_step: OnStep, about: Mapping[str, str]
) -> Profile:
    """A profile by CPU cores, with one rank of each model."""
    target_model = Checkpoint.open(open_source(config.target), config)
    draft_model = Checkpoint.open_draft(open_source(draft), config)
    paces = {"target": measure_cores(config, target_model, TARGET_ROWS, units, on_step)}
    paces["draft"] = measure_cores(config, draft_model, DRAFT_ROWS, units, on_step)
    target_pace = paces["target"][units[-1]]
    on_step("rounds and expansions")
    round_s = round_overhead_s(config, target_pace)
    expansion_s = expansion_overhead_s(load(config, draft_model), target_pace, paces["draft"][units[-1]])
    has_worker = len(units) > 1  # with one core there is no core for a drafter's process
    apart = replace(config, drafter=Parallel(draft=DraftModel(model=draft)), num_threads=max(1, units[-1] - 1))
    return Profile(
        source="measured",
        unit="core",
        target=paces["target"],
        draft=paces["draft"],
        serial_overhead_s=round_s,
        parallel_overhead_s=round_s,
        expansion_overhead_s=expansion_s,
        worker_expansion_overhead_s=worker_overhead_s(apart, paces["draft"][1]) if has_worker else expansion_s,
        about=about,
    )


def of_ranks(config: EngineConfig, draft: str, ranks: Ranks, on_step: OnStep, about: Mapping[str, str]) -> Profile:
    """A profile by ranks; the overheads are those of the fewest ranks, since they hardly depend on the number."""
    is_on_cpu = config.device == "cpu"
    fewest = min(ranks.target), min(ranks.draft)
    num_cores = config.num_threads or 1
    config = replace(config, num_threads=max(1, num_cores // max(*ranks.target, *ranks.draft)))
    paces: dict[str, dict[int, Pace]] = {"target": {}, "draft": {}}
    for num_ranks in sorted(set(ranks.target)):
        on_step(f"{config.target} on {num_ranks} of {max(ranks.target)} ranks")
        with runner_of(ranks.of_target(config, num_ranks), "target") as runner:
            paces["target"][num_ranks] = measured(runner, TARGET_ROWS)
    for num_ranks in sorted(set(ranks.draft)):
        on_step(f"{draft} on {num_ranks} of {max(ranks.draft)} ranks")
        with runner_of(ranks.of_draft(config, draft, num_ranks), "draft") as runner:
            paces["draft"][num_ranks] = measured(runner, DRAFT_ROWS)
    on_step("rounds and expansions")
    target_pace = paces["target"][fewest[0]]
    draft_pace = paces["draft"][fewest[1]]
    alone = ranks.of_target(config, fewest[0])
    round_s = round_overhead_s(alone, target_pace)
    with runner_of(ranks.of_draft(config, draft, fewest[1]), "draft") as runner:
        expansion_s = expansion_overhead_s(runner, target_pace, draft_pace)
    num_devices = num_cores if is_on_cpu else torch.cuda.device_count()
    worker_s = expansion_s
    if sum(fewest) <= num_devices:  # else there is no device for a drafter's process
        parallel = Parallel(draft=DraftModel(model=draft), ranks=fewest[1], device=ranks.draft_device)
        worker_s = worker_overhead_s(replace(alone, drafter=parallel), draft_pace)
    return Profile(
        source="measured",
        unit="rank" if is_on_cpu else "GPU",
        target=paces["target"],
        draft=paces["draft"],
        serial_overhead_s=round_s,
        parallel_overhead_s=round_s,
        expansion_overhead_s=expansion_s,
        worker_expansion_overhead_s=worker_s,
        about={**about, "threads of a rank": str(config.num_threads)},
    )


@contextmanager
def runner_of(config: EngineConfig, role: SharedRole) -> Iterator[Runner]:
    """The model `config.target` on its ranks, in this process and others, which then end."""
    opened = Checkpoint.open if role == "target" else Checkpoint.open_draft
    checkpoint = opened(open_source(config.target), config)
    num_threads = config.num_threads or 1
    if config.target_ranks == 1:
        runner = load(config, checkpoint)
    else:
        runner = load_shared(
            checkpoint,
            config,
            checkpoint.choose_backend(config.exactness),
            role=role,
            exactness=config.exactness,
            capacity=CONTEXT + ROOM,
            pace=None,
            num_threads=num_threads,
        )
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield runner
    finally:
        torch.set_num_threads(before)
        runner.close()


def measured(runner: Runner, rows: Sequence[int]) -> Pace:
    """A model's pace."""
    return measure_pace(runner, rows, context=context_of(runner), budget_s=BUDGET_S)


def measure_cores(
    config: EngineConfig, checkpoint: Checkpoint, rows: Sequence[int], units: Sequence[int], on_step: OnStep
) -> dict[int, Pace]:
    """A model's pace on every number of cores; the model is loaded for this and freed afterwards."""
    runner = load(config, checkpoint)
    paces = {}
    for num_units in units:
        on_step(f"{checkpoint.source.name} on {num_units} of {len(units)}")
        paces[num_units] = on_threads(num_units, partial(measured, runner, rows))
    return paces


def load(config: EngineConfig, checkpoint: Checkpoint) -> Runner:
    """Load a model with room for the context and all rows that are measured after it."""
    return checkpoint.load(exactness=config.exactness, capacity=CONTEXT + ROOM, cache_bytes=config.cache_bytes)


def context_of(runner: Runner) -> int:
    """Tokens before the measured rows, the same in all measurements so that times can be subtracted; fewer if the model
    has few positions."""
    return min(CONTEXT, runner.spec.max_positions // 2)


@torch.inference_mode()
def expansion_overhead_s(draft: Runner, target_pace: Pace, draft_pace: Pace) -> float:
    """The median time of a serial drafter's expansion beyond its pass: choosing nodes, ranking and adding children."""
    config = DraftModel()
    guessed = GuessedTree(
        TreePolicy(looks_up=False),
        verify_width=config.verify_width,
        draft_width=config.draft_width,
        calibrates=config.adaptive,
    )
    budget = RowBudget(config.verify_width, RoundCosts(target_pace), DraftCosts(expansion=draft_pace))
    tree = DraftTree(guessed, OwnRows(draft, serial_rows(config)), target_vocab_size=draft.spec.vocab_size)
    tree.reset((0,) * context_of(draft), SamplingParams(), None)
    while tree.prefill():
        pass
    beyond_s = []
    for number in range(NUM_EXPANSIONS):
        if number and number % EXPANSIONS_PER_ROUND == 0:
            tree.advance((tree.tree.token_ids[1],))
            budget.start_round(config.verify_width)
        num_rows = draft.cache.num_tree
        began = perf_counter()
        if tree.expand(budget):
            beyond_s.append(perf_counter() - began - draft_pace.step_s(draft.cache.num_tree - num_rows))
    tree.forget()
    return max(0.0, median(beyond_s))


def worker_overhead_s(config: EngineConfig, pace: Pace) -> float:
    """The median time of an expansion beyond its pass in the drafter's process that `config` sets.

    The process does not report the nodes per expansion; most expansions have the maximum.
    """
    policies = Policies(tree=TreePolicy(looks_up=False), remote=RemotePolicy(looks_up=False, is_traced=True))
    with Engine(config, policies=policies) as engine:
        times_s: list[float] = []
        for _ in range(MOST_ANSWERS):  # on a busy machine the process may get no CPU time during one answer
            spans = [span for step in engine.stream(*question(engine)) for span in step.stats.spans]
            times_s += [span.end_s - span.start_s for span in spans if span.lane == "draft"]
            if times_s:
                break
    if not times_s:
        raise ConfigError(
            "the drafter's process did not draft, so its speed cannot be measured: see the messages above, or measure "
            "with --threads 1, which starts no drafter's process"
        )
    return max(0.0, median(times_s) - pace.step_s(DraftModel().draft_width))


def round_overhead_s(config: EngineConfig, pace: Pace) -> float:
    """The median time of a plain round beyond its pass: sampling, committing, decoding text."""
    with Engine(replace(config, drafter=NoDrafter())) as engine:
        times_s = []
        began = perf_counter()
        for _ in engine.stream(*question(engine)):
            times_s.append(perf_counter() - began)
            began = perf_counter()
    return max(0.0, median(times_s) - pace.step_s(1))


def question(engine: Engine) -> tuple[tuple[int, ...], SamplingParams]:
    """A prompt as long as the measured context, and parameters for a short answer."""
    num_ids = min(CONTEXT, engine.max_length // 2)
    num_new = min(NUM_TOKENS, engine.max_length - num_ids)
    return (0,) * num_ids, SamplingParams(max_new_tokens=num_new, ignore_eos=True)
