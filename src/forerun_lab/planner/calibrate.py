"""Measure the times of passes on this machine, as a profile for the planner."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Final

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
from forerun.engine.placement import allowed_threads
from forerun.model.measure import measure_pace
from forerun.model.runner import Runner
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


def calibrate(config: EngineConfig, draft: str, on_step: OnStep) -> Profile:
    """Measure both models on every number of cores, and the overheads of rounds and expansions.

    On other devices than the CPU there is one unit, the device itself.

    Args:
        config: target, dtype, device and the most threads; its drafter and its pace are not used.
        on_step: called with the name of each measurement.
    """
    most = allowed_threads(config.num_threads, usable_cores())
    device = read_device(config.device).torch_device
    config = replace(config, device=device, num_threads=most)
    units = range(1, most + 1) if device == "cpu" else range(1, 2)
    target_model = Checkpoint.open(open_source(config.target), config)
    draft_model = Checkpoint.open_draft(open_source(draft), config)
    paces = {"target": measure_units(config, target_model, TARGET_ROWS, units, on_step)}
    paces["draft"] = measure_units(config, draft_model, DRAFT_ROWS, units, on_step)
    target_pace = paces["target"][units[-1]]
    draft_pace = paces["draft"][units[-1]]
    on_step("rounds and expansions")
    round_s = round_overhead_s(config, target_pace)
    expansion_s = expansion_overhead_s(load(config, draft_model), target_pace, draft_pace)
    has_worker = len(units) > 1  # with one core there is no core for a drafter's process
    return Profile(
        source="measured",
        unit="core" if device == "cpu" else "GPU",
        target=paces["target"],
        draft=paces["draft"],
        serial_overhead_s=round_s,
        parallel_overhead_s=round_s,
        expansion_overhead_s=expansion_s,
        worker_expansion_overhead_s=worker_overhead_s(config, draft, paces["draft"][1]) if has_worker else expansion_s,
        about={
            "target": config.target,
            "draft": draft,
            "dtype": config.dtype,
            "weights": config.weights,
            "device": config.device,
            "exactness": config.exactness,
            "torch": torch.__version__,
        },
    )


def measure_units(
    config: EngineConfig, checkpoint: Checkpoint, rows: Sequence[int], units: Sequence[int], on_step: OnStep
) -> dict[int, Pace]:
    """A model's pace on every number of units; the model is loaded for this and freed afterwards."""
    runner = load(config, checkpoint)
    paces = {}
    for num_units in units:
        on_step(f"{checkpoint.source.name} on {num_units} of {len(units)}")
        measure = partial(measure_pace, runner, rows, context=context_of(runner), budget_s=BUDGET_S)
        paces[num_units] = on_threads(num_units, measure) if config.device == "cpu" else measure()
    return paces


def load(config: EngineConfig, checkpoint: Checkpoint) -> Runner:
    """Load a model with room for the context and all rows that are measured after it."""
    return checkpoint.load(config, exactness=config.exactness, capacity=CONTEXT + ROOM, pace=None, on_progress=None)


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


def worker_overhead_s(config: EngineConfig, draft: str, pace: Pace) -> float:
    """The median time of an expansion beyond its pass in a drafter's process that has its own core.

    The process does not report the nodes per expansion; most expansions have the maximum.
    """
    shape = DraftModel(model=draft)
    config = replace(config, drafter=Parallel(draft=shape), num_threads=max(1, (config.num_threads or 1) - 1))
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
    return max(0.0, median(times_s) - pace.step_s(shape.draft_width))


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
