"""Rounds that the device plays by itself: how long they take beyond their passes, and what they write.

Acceptance is that of the built-in pair, measured here with the same widths; for the large shapes, whose weights are
random, it is only put beside their round times, and what follows from both is named a projection.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from forerun.backends.device_rounds import RoundPlan
from forerun.backends.gpu.executor import num_splits_for
from forerun.backends.gpu.rounds import DeviceRounds
from forerun.core.config import EngineConfig, SamplingParams
from forerun.core.drafter_config import DrafterConfig, DraftModel, LayerSkip, NoDrafter, Parallel
from forerun.drafting.policies import Policies, TreePolicy
from forerun.engine.engine import Engine
from forerun.model.runner import Runner
from forerun_lab.bench.run.call_times import Spread
from forerun_lab.bench.run.ceilings import bytes_per_step
from forerun_lab.checks.gpu.cases import Case, Row, Setting
from forerun_lab.checks.gpu.layers import context_of
from forerun_lab.checks.gpu.models import Model, models
from forerun_lab.checks.gpu.passes import fill_cache, runner_of

PAIRS = (("70b int4", "1b int4"), ("8b bf16", "1b bf16"), ("8b int4", "1b int4"))
WIDTHS = ((8, 8, 5), (16, 8, 6), (32, 8, 8))  # verify_width, draft_width, depth
REHEARSED_WIDTHS = ((4, 2, 1),)
PROMPTS = ("def quicksort(items):", "class Stack:\n    def push(self, item):", "import os\n\ndef walk(folder):")
NUM_TOKENS = 256
REPEATS = 30


def cases(setting: Setting) -> Iterator[Case]:
    for name, drafter in drafters(setting):
        warmed = (
            partial(warm_built_in, drafter, setting) if name == "draft_model" else None
        )  # it has the others' kernels
        yield Case(name=f"built-in pair, {name}", run=partial(built_in, name, drafter, setting), warm=warmed)
    for pair in PAIRS[: 1 if setting.is_quick or setting.is_rehearsal else None]:
        target, draft = models(setting, *pair)
        yield Case(
            name=f"{target} with {draft}", run=partial(rounds, target, draft, setting),
            warm=partial(warm, target, draft, setting),
        )  # fmt: skip


def widths(setting: Setting) -> tuple[tuple[int, int, int], ...]:
    return REHEARSED_WIDTHS if setting.is_rehearsal else WIDTHS


def fixed(verify_width: int, draft_width: int, depth: int) -> DraftModel:
    return DraftModel(
        verify_width=verify_width, draft_width=draft_width, depth=depth, adaptive=False
    )  # fmt: skip


UNPRUNED = TreePolicy(min_mass=0.0, looks_up=False)  # every level is as wide as it may be


def drafters(setting: Setting) -> list[tuple[str, DrafterConfig]]:
    """The drafters for the built-in target; the parallel one in another process on the same GPU."""
    serial = [("draft_model {}/{}/{}".format(*shape), fixed(*shape)) for shape in widths(setting)]
    if setting.is_rehearsal:
        return [("none", NoDrafter()), *serial]
    return [
        ("none", NoDrafter()), *serial, ("draft_model", DraftModel()), ("layer_skip", LayerSkip()),
        ("parallel", Parallel(device="cuda:0")),
    ]  # fmt: skip


def built_in(name: str, drafter: DrafterConfig, setting: Setting) -> Iterator[Row]:
    """Tokens per second and per round of the built-in target with this drafter, greedy and sampled."""
    num_tokens = 2 if setting.is_rehearsal else NUM_TOKENS
    prompts = PROMPTS[: 1 if setting.is_rehearsal else None]
    with open_built_in(drafter, setting) as engine:
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature, seed=1, max_new_tokens=num_tokens, ignore_eos=True)
            if not setting.is_rehearsal:
                engine.generate(PROMPTS[0], params)
            done = [engine.generate(prompt, params) for prompt in prompts]
            yield {
                "drafter": name, "temperature": temperature,
                "tokens_per_s": Spread.of([generation.stats.tokens_per_s for generation in done]).median,
                "tokens_per_round": Spread.of([generation.stats.tokens_per_round for generation in done]).median,
                "text": [hash(generation.token_ids) for generation in done],
            }  # fmt: skip


def open_built_in(drafter: DrafterConfig, setting: Setting) -> Engine:
    device, kernels = (
        ("cpu", "auto") if setting.is_rehearsal else ("cuda:0", "triton")
    )  # not in the interpreter: minutes
    is_fixed = isinstance(drafter, DraftModel) and not drafter.adaptive
    policies = Policies(tree=UNPRUNED) if is_fixed else None
    config = EngineConfig(drafter=drafter, device=device, kernels=kernels, max_length=512)  # type: ignore[arg-type]
    return Engine(config, policies=policies)


def warm_built_in(drafter: DrafterConfig, setting: Setting) -> None:
    open_built_in(drafter, setting).close()


def rounds(target: Model, draft: Model, setting: Setting) -> Iterator[Row]:
    capacity = 1024
    sides = [runner_of(model, setting, capacity=capacity) for model in (target, draft)]
    for shape in widths(setting):
        yield measure_rounds(target, draft, sides, setting, *shape)


def warm(target: Model, draft: Model, setting: Setting) -> None:
    """All kernels of these rounds, on two layers."""
    short = [replace(model, spec=replace(model.spec, num_layers=2)) for model in (target, draft)]
    for _ in rounds(short[0], short[1], setting):
        pass


@torch.inference_mode()
def measure_rounds(
    target: Model, draft: Model, sides: list[Runner], setting: Setting, verify_width: int, draft_width: int, depth: int
) -> Row:
    """Milliseconds of a round by the device's clock, of its passes alone, and of the host's launch."""
    context = context_of(setting)
    for runner in sides:
        runner.forget()
        fill_cache(runner, context)
    plan = RoundPlan(draft=sides[1], shape=fixed(verify_width, draft_width, depth), policy=UNPRUNED)
    played = DeviceRounds(sides[0], plan)
    played.set_request(SamplingParams(temperature=0.0), 0)
    text = [1] * (context + 1)
    executors = (played.target.executor, sides[1].executor)
    num_splits = num_splits_for(context)

    def play(depth: int) -> None:
        played.launch(depth, context)

    def pass_of(side: int, num_rows: int) -> None:
        part = (played.target, played.draft)[side]
        assert part is not None
        executors[0].graphs.run((side, num_rows), lambda: part.pass_layers(num_rows, num_splits))

    reset = partial(played.set_text, text)
    round_s, launch_s = time_one(partial(play, depth), reset, setting)
    plain_s, _ = time_one(partial(play, 0), reset, setting)
    verify_s, _ = time_one(partial(pass_of, 0, verify_width), reset, setting)
    draft_s, _ = time_one(partial(pass_of, 1, draft_width), reset, setting)
    floors = [
        bytes_per_step(model.spec, 2, context, model.weight_format) / setting.copy_bytes_per_s
        if setting.copy_bytes_per_s
        else None
        for model in (target, draft)
    ]
    return {
        "target": str(target), "draft": str(draft), "verify_width": verify_width, "draft_width": draft_width,
        "depth": depth, "round_ms": 1e3 * round_s, "round_of_depth_0_ms": 1e3 * plain_s,
        "verify_layers_ms": 1e3 * verify_s, "draft_layers_ms": 1e3 * draft_s,
        "expansion_ms": 1e3 * (round_s - plain_s) / depth, "launch_us": 1e6 * launch_s,
        "floor_ms_computed": None if None in floors else 1e3 * (floors[0] + depth * floors[1]),  # type: ignore[operator]
    }  # fmt: skip


def time_one(work: Callable[[], None], prepare: Callable[[], None], setting: Setting) -> tuple[float, float]:
    """Seconds of one such work by the device's clock, and until the host is free again; each begins anew."""
    on_device = []
    on_host = []
    for _ in range(3):  # compile, record, replay
        prepare()
        work()
    for _ in range(1 if setting.is_rehearsal else REPEATS):
        prepare()
        if setting.device != "cuda":
            began = time.perf_counter()
            work()
            on_device.append(time.perf_counter() - began)
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        began = time.perf_counter()
        start.record()
        work()
        end.record()
        on_host.append(time.perf_counter() - began)
        end.synchronize()
        on_device.append(start.elapsed_time(end) / 1e3)
    return Spread.of(on_device).median, Spread.of(on_host or [0.0]).median
