"""What passes cost on the machine at hand: a profile for the planner, and for drafters that choose their widths."""

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Final

import torch

from forerun.checkpoints.locate import locate
from forerun.core.config import DraftModel, EngineConfig, NoDrafter, SamplingParams
from forerun.core.pace import Pace, read_device
from forerun.core.profile import Profile
from forerun.drafting.draft_tree import DraftTree
from forerun.engine.engine import Engine
from forerun.engine.loading import Checkpoint
from forerun.model.measure import measure_pace
from forerun.model.runner import Runner

TARGET_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 28, 32)
DRAFT_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
CONTEXT: Final = 256
BUDGET_S: Final = 2.0  # for one model on one number of cores
NUM_EXPANSIONS: Final = 60
NUM_ROUNDS: Final = 60

OnStep = Callable[[str], None]


def calibrate(config: EngineConfig, draft: str, on_step: OnStep) -> Profile:
    """Measure both models on every number of cores, and what rounds and expansions take beside their passes.

    On another device than the CPU there is one unit, the device itself.

    Args:
        config: target, dtype, device and the most threads; its drafter does not matter.
        on_step: told what is being measured.
    """
    device = read_device(config.device).torch_device
    most = config.num_threads or torch.get_num_threads()
    units = range(1, most + 1) if device == "cpu" else (1,)
    runners = {"target": load(config, config.target), "draft": load(config, draft)}
    paces: dict[str, dict[int, Pace]] = {"target": {}, "draft": {}}
    for num_units in units:
        if device == "cpu":
            torch.set_num_threads(num_units)
        for side, rows in (("target", TARGET_ROWS), ("draft", DRAFT_ROWS)):
            on_step(f"{side} on {num_units} of {len(units)}")
            paces[side][num_units] = measure_pace(runners[side], rows, context=CONTEXT, budget_s=BUDGET_S)
    on_step("rounds and expansions")
    round_s = round_overhead_s(config, paces["target"][units[-1]])
    return Profile(
        source="measured",
        unit="core" if device == "cpu" else "GPU",
        target=paces["target"],
        draft=paces["draft"],
        serial_overhead_s=round_s,
        parallel_overhead_s=round_s,
        expansion_overhead_s=expansion_overhead_s(runners["draft"], paces["draft"][units[-1]]),
        about={
            "target": config.target,
            "draft": draft,
            "dtype": config.dtype,
            "device": config.device,
            "exactness": config.exactness,
            "torch": torch.__version__,
        },
    )


def load(config: EngineConfig, name: str) -> Runner:
    """A model with room for the widest pass."""
    checkpoint = Checkpoint.open(name, locate(name), config)
    capacity = min(CONTEXT, checkpoint.spec.max_positions - TARGET_ROWS[-1]) + 2 * TARGET_ROWS[-1]
    return checkpoint.load(config, exactness=config.exactness, capacity=capacity, pace=None, on_progress=None)


def expansion_overhead_s(draft: Runner, pace: Pace) -> float:
    """The median time of an expansion beyond its pass: choosing nodes, ranking and adding children."""
    config = DraftModel(draft_width=4, lookup=False, min_mass=0.0)
    max_rows = 4 * config.draft_width + 16
    tree = DraftTree(
        draft, config, target_vocab_size=draft.spec.vocab_size, horizon=8, max_rows=max_rows, keeps_subtree=False
    )
    tree.begin((0, 1), SamplingParams(), None)
    beyond_s = []
    with torch.inference_mode():
        for _ in range(NUM_EXPANSIONS):
            rows = draft.cache.num_tree
            began = perf_counter()
            if tree.expand():
                beyond_s.append(perf_counter() - began - pace.step_s(draft.cache.num_tree - rows))
            else:
                tree.advance((tree.tree.token_ids[1],))
    tree.close()
    return max(0.0, median(beyond_s))


def round_overhead_s(config: EngineConfig, pace: Pace) -> float:
    """The median time of a plain round beyond its pass: choosing, committing, text."""
    params = SamplingParams(max_new_tokens=NUM_ROUNDS, ignore_eos=True)
    with Engine(replace(config, drafter=NoDrafter())) as engine:
        times = []
        began = perf_counter()
        for _ in engine.stream((0, 1), params):
            times.append(perf_counter() - began)
            began = perf_counter()
    return max(0.0, median(times) - pace.step_s(1))
